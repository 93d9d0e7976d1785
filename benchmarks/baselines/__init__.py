"""Baselines: the engines' builtin grammars, against which ours are measured."""
