"""Positions and guesses of calls whose arguments are XTML: one block for each of the object's members."""
