"""Rewrites JSON Schemas so that xgrammar's own JSON Schema converter enforces them exactly."""
