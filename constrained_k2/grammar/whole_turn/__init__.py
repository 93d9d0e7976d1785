"""Grammars of a whole turn: text, reasoning, markers, call ids and arguments."""
