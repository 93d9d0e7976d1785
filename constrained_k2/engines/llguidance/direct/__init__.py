"""Computes masks of simple parser states with a trie of all tokens; LLGuidance does single terminals."""
