"""Incremental parsers of a turn's arguments or answer, for draft tokens, finish reserve and explain."""
