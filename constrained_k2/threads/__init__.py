"""Long work in threads: yielding the GIL, stopping when the caller gives up, and a compile pool."""
