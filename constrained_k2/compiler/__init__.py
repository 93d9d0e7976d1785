"""Compiles requests: schemas become grammars, cached and within budgets, shared by all matchers."""

from constrained_k2.compiler.compiler import Compiler

__all__ = ["Compiler"]
