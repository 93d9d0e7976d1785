"""Incremental parsers of a turn's arguments or answer, for drafts, the finish reserve and ``explain``."""
