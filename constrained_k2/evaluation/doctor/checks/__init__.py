"""The checks, one function each: ``async (target) -> Finding``; ``examination`` turns ``NoAnswer`` into findings."""
