"""Incremental parsers of arguments and answers, for drafts and to end a call or answer in few tokens."""
