"""Incremental parsers of arguments and answers, to draft tokens and to finish in few tokens."""
