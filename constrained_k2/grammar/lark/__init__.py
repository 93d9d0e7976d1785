"""Writes the grammars of schemas and of custom tools in LLGuidance's Lark dialect."""
