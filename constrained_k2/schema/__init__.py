"""Turns JSON Schemas into shapes (the allowed values of one JSON type), from which grammars are made."""
