"""Writes grammars of call arguments, answers and whole turns, for LLGuidance and xgrammar."""
