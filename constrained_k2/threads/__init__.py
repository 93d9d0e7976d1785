"""Long work in threads: breaks for other threads, work that is given up, and the pool that compiles."""
