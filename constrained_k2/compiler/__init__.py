"""Compiles requests: schemas to grammars with budgets and a cache, and the state that a request's matchers share."""
