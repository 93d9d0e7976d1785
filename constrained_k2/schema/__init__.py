"""Expands a JSON Schema into shapes: constraints on one JSON type each, the input of grammars."""
