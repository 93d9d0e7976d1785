"""From calls to token ids, and from requests to prompts."""

from constrained_k2.rendering.calls import render_tool_calls
from constrained_k2.rendering.inspect import Fault, find_faults
from constrained_k2.rendering.mending import Repair
from constrained_k2.rendering.prompt import PromptRenderer, RenderedPrompt, render_prompt
from constrained_k2.rendering.repair import repair_messages

__all__ = [
    "Fault",
    "PromptRenderer",
    "RenderedPrompt",
    "Repair",
    "find_faults",
    "render_prompt",
    "render_tool_calls",
    "repair_messages",
]
