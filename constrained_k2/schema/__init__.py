"""Turns JSON Schemas into shapes, each a set of values of one JSON type: the source of grammars."""
