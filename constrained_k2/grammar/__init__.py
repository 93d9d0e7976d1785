"""Grammars as text, written of a schema's shapes."""
