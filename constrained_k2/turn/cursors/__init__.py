"""Cursors in the JSON, XTML or custom text of a turn, for draft tokens, finish reserve and explain."""
