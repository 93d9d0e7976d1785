"""Writes shapes as grammars: Lark for LLGuidance, JSON Schema for xgrammar, and whole-turn grammars."""
