"""Uniqueness filter: removes tokens that repeat a key or ``uniqueItems`` item, if other tokens remain."""
