"""LLGuidance as a grammar engine."""
