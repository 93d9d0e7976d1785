"""Writes schemas as Lark for LLGuidance; translates clients' grammars, and parses text under them."""
