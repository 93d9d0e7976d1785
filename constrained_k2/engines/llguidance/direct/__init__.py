"""Masks of simple positions, computed from the vocabulary without LLGuidance."""
