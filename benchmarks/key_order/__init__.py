"""Effect of the order of keys in arguments."""
