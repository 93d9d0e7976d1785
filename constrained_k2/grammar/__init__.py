"""Writes grammars of arguments, answers and assistant messages, for LLGuidance and xgrammar."""
