"""Computes masks of simple parser states from a trie of the vocabulary, without LLGuidance's parser."""
