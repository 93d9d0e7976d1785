"""Writes shapes as grammars in LLGuidance's Lark dialect."""
