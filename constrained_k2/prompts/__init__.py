"""Repairs requests, renders them as prompts, and renders tool calls as token ids."""

from constrained_k2.prompts.fault import Fault
from constrained_k2.prompts.faults import find_faults
from constrained_k2.prompts.prompt import PromptRenderer, prompt_renderer, render_prompt, render_tool_calls
from constrained_k2.prompts.rendered import RenderedPrompt
from constrained_k2.prompts.repair import repair_messages
from constrained_k2.prompts.text_repairs import Repair

__all__ = ["Fault", "PromptRenderer", "RenderedPrompt", "Repair", "find_faults"]
__all__ += ["prompt_renderer", "render_prompt", "render_tool_calls", "repair_messages"]
