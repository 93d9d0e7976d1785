"""Rewrites JSON Schemas with only the keywords that xgrammar's builtin converter enforces exactly."""
