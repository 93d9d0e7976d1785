"""Writes grammars of JSON Schemas and of custom tools in LLGuidance's Lark dialect."""
