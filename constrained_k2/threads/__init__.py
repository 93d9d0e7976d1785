"""Long work in threads: it yields the GIL, stops when its caller gives up, and compiles in a pool."""
