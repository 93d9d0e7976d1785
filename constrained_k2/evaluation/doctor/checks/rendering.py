"""Is a plain dialog rendered as Kimi was trained on it?"""

from constrained_k2.evaluation.doctor.bodies import TOOLS, history, user
from constrained_k2.evaluation.doctor.finding import Finding, ok, shown
from constrained_k2.evaluation.doctor.prompts import (
    Prompt,
    blanks_before_results,
    has_generation_prompt,
    printed_list,
    text_before_calls,
)
from constrained_k2.evaluation.doctor.remedies import NEWER_TEMPLATE
from constrained_k2.evaluation.doctor.target import Target


async def generation_prompt(target: Target) -> Finding:
    """Whether the prompt ends with the header of the assistant's turn."""
    return judge_generation_prompt(await target.prompt({"messages": [user("Hello.")]}))


def judge_generation_prompt(prompt: Prompt) -> Finding:
    """The finding on one prompt."""
    if has_generation_prompt(prompt):
        return ok("the prompt ends with <|im_assistant|>assistant<|im_middle|>")
    end = "".join(piece.text for piece in prompt[-4:])
    return Finding("fault", f"the prompt ends with {shown(end[-80:])!r}: the model goes on as the user", NEWER_TEMPLATE)


async def empty_content(target: Target) -> Finding:
    """Whether content that is empty, null or a list of parts is rendered as its text."""
    parts = [{"type": "text", "text": "2 tables"}]
    dialogs = (
        ("content ''", history("functions.list_tables:0")),
        ("content null", history("functions.list_tables:0", content=None)),
        ("a list of parts", [*history("functions.list_tables:0", result=parts)[:-1], user(parts)]),
    )
    for name, messages in dialogs:
        finding = judge_content(await target.prompt({"messages": messages, "tools": TOOLS}), name)
        if finding.verdict != "ok":
            return finding
    return ok("'', null and lists of parts are rendered as their text")


def judge_content(prompt: Prompt, name: str) -> Finding:
    """The finding on one prompt whose assistant's turns hold calls and no text.

    Args:
        prompt: The prompt.
        name: What was sent as content.
    """
    if listed := printed_list(prompt):
        return Finding("fault", f"{name} is printed as a Python list: {shown(listed)}", NEWER_TEMPLATE)
    for text in text_before_calls(prompt):
        if text.strip():
            return Finding("fault", f"{name} becomes {shown(text, 60)!r} before the calls", NEWER_TEMPLATE)
    return ok(f"{name} is rendered as its text")


async def tool_results(target: Target) -> Finding:
    """Whether results stand directly under their headline."""
    return judge_results(await target.prompt({"messages": history("functions.list_tables:0"), "tools": TOOLS}))


def judge_results(prompt: Prompt) -> Finding:
    """The finding on one prompt."""
    if blanks_before_results(prompt):
        return Finding("fault", "results are indented under '## Return of': an old chat template", NEWER_TEMPLATE)
    return ok("results stand directly under '## Return of ID'")
