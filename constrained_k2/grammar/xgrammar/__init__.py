"""Rewrites JSON Schemas to what xgrammar's builtin converter enforces exactly, and relaxes the rest."""
