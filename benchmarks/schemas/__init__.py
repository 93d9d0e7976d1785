"""Coverage, soundness and cost of schema compilation, compared with the engines' builtin converters."""
