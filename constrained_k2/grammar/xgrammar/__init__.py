"""Rewrites shapes as JSON Schema that xgrammar's converter enforces exactly."""
