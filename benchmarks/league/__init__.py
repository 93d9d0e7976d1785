"""MaskBench: schemas found in the wild with their instances, on our grammars and the engines' own converters."""
