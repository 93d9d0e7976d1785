"""Incremental parsers of call arguments and answers, to draft tokens and to end them in few tokens."""
