"""Writes shapes as grammars: Lark for LLGuidance, JSON Schema for xgrammar, and grammars of whole turns."""
