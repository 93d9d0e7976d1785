"""Expands a JSON Schema into shapes, the allowed values of one JSON type each, to write grammars from."""
