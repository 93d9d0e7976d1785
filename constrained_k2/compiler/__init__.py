"""Compiles requests: turns schemas into grammars that are cached and shared, within budgets."""

from constrained_k2.compiler.compiler import Compiler

__all__ = ["Compiler"]
