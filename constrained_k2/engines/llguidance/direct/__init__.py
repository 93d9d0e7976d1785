"""Computes masks of simple parser states from a token trie; LLGuidance is used only for terminals."""
