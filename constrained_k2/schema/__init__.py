"""Turns JSON Schemas into shapes (each the allowed values of one JSON type), the source of grammars."""
