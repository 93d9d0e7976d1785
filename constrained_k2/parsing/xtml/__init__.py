"""Parses XTML, the tags and typed values of Kimi K3."""

from constrained_k2.parsing.xtml.strict import StrictXtmlReader
from constrained_k2.parsing.xtml.tolerant import TolerantXtmlReader

__all__ = ["StrictXtmlReader", "TolerantXtmlReader"]
