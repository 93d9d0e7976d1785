"""Explains what a mask changed: the token that was wanted, the one that was written, the place and the keyword."""
