"""LLGuidance as the grammar engine: schemas become Lark grammars, and masks are cached by DFA state."""
