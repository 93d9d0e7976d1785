"""Judging a server by what it answers."""
