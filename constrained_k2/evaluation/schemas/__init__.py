"""Schemas measured: the public suite, real tools, hostile ones; our grammars beside the engines' own converters."""
