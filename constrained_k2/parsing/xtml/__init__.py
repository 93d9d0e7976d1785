"""Parses Kimi K3's turns in XTML: tags, and arguments as typed values."""

from constrained_k2.parsing.xtml.strict import StrictXtmlReader
from constrained_k2.parsing.xtml.tolerant import TolerantXtmlReader

__all__ = ["StrictXtmlReader", "TolerantXtmlReader"]
