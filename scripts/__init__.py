"""Commands for a clone."""
