"""A mixed load on a real server: constrained calls must be valid, other answers unchanged, memory flat."""
