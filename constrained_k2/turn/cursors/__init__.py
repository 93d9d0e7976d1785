"""Incremental parsers of call arguments and answers, to draft tokens or end before ``max_tokens``."""
