"""Writes grammars of a whole assistant message: reasoning, text, special tokens, tool calls."""
