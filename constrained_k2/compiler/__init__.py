"""Compiles requests: schemas to grammars with budgets and a cache, and the state that a request's matchers share."""

from constrained_k2.compiler.compiler import Compiler

__all__ = ["Compiler"]
