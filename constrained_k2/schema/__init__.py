"""Checks JSON Schemas, and expands them into shapes (sets of values of one type) for grammars."""
