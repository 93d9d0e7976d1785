"""Writes grammars of call arguments, JSON answers and whole turns, for LLGuidance and xgrammar."""
