"""Shortest completions of a call or an answer, as texts and markers, for the finish reserve."""
