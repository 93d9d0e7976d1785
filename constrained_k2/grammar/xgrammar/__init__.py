"""Rewrites JSON Schemas so that xgrammar's builtin JSON Schema converter enforces them exactly."""
