"""Parses a completion's token ids into content, reasoning and tool calls."""

from constrained_k2.parsing.parser import PARSING_LEVELS, Completion, CutCall, ToolCallParser, parse_completion

__all__ = ["PARSING_LEVELS", "Completion", "CutCall", "ToolCallParser", "parse_completion"]
