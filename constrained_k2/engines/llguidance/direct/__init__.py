"""Computes masks of simple parser states from a token trie; LLGuidance only matches single terminals."""
