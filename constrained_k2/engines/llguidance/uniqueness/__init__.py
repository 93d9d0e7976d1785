"""Uniqueness filter: masks out tokens that repeat a key or ``uniqueItems`` item, if others remain."""
