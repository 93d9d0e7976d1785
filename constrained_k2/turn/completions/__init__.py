"""Proposes short texts that end a call or an answer when ``max_tokens`` is about to run out."""
