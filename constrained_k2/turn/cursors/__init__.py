"""Cursors in the JSON, the XTML or the custom text that a turn writes, for drafts, endings and explanations."""
