"""A mixed load on a real server: whether constrained calls are valid, others unchanged, and memory flat."""
