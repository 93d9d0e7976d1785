"""Masks computed from the token trie; LLGuidance matches at most a single terminal."""
