"""Runs long work in threads: it yields the GIL, stops if the caller gives up, compiles in a pool."""
