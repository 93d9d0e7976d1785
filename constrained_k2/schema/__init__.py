"""Turns a JSON Schema into unions of shapes (one JSON type each), from which grammars are written."""
