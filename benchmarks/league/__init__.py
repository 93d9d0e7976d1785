"""MaskBench's schemas with their instances, on our grammars and the engines' own converters."""
