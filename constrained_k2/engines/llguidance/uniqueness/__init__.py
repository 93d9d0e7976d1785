"""Masks out tokens that repeat a key or a ``uniqueItems`` item, unless no other tokens remain."""
