"""Explains what a mask changed: the token that was wanted, the one that was written, the place and the keyword."""

from constrained_k2.explain.limits import DEFAULT_LIMITS, ExplainLimits
from constrained_k2.explain.overrides import explain_rows
from constrained_k2.explain.records import ExaminedRow, Override, Place

__all__ = ["DEFAULT_LIMITS", "ExaminedRow", "ExplainLimits", "Override", "Place", "explain_rows"]
