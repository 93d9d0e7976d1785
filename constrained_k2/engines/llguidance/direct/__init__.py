"""Computes masks of simple parser states by a token trie, using LLGuidance only for single terminals."""
