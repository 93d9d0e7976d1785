"""Uniqueness filter: keeps a call from repeating a key, or an item of a ``uniqueItems`` array."""
