"""Uniqueness filter: keeps a call from repeating keys or compared array items, if others are possible."""
