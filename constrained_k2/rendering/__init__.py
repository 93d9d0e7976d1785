"""From calls to token ids."""

from constrained_k2.rendering.calls import render_tool_calls

__all__ = ["render_tool_calls"]
