"""Incremental parsers of call arguments and answers, for draft tokens and short completions."""
