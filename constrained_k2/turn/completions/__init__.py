"""Proposes short completions of a call or an answer, for when ``max_tokens`` is about to run out."""
