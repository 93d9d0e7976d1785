"""Writes grammars of a whole model turn: reasoning, text, markers, call ids and arguments."""
