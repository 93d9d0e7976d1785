"""Expands a JSON Schema into shapes (constraints on one JSON type each), from which grammars are written."""
