"""Remembers the keys and items that a call has written, so that none of them comes twice."""
