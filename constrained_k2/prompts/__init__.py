"""Renders calls as token ids and requests as prompts, and repairs requests."""

from constrained_k2.prompts.faults import find_faults
from constrained_k2.prompts.prompt import PromptRenderer, RenderedPrompt, render_prompt, render_tool_calls
from constrained_k2.prompts.repair import repair_messages
from constrained_k2.prompts.text_repairs import Repair

__all__ = ["PromptRenderer", "RenderedPrompt", "Repair", "find_faults", "render_prompt", "render_tool_calls"]
__all__ += ["repair_messages"]
