"""Expands JSON Schemas into shapes: sets of values of one JSON type, to write grammars from."""
