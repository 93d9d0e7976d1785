"""Compares a server's prompts in tags (Kimi K3) with the prompts that this package renders."""

import json
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from constrained_k2.evaluation.doctor.findings import Finding, fault, ok
from constrained_k2.evaluation.doctor.prompt import Piece, Prompt
from constrained_k2.evaluation.doctor.requests import TOOLS, user
from constrained_k2.evaluation.doctor.target import Target
from constrained_k2.explain.view import printable
from constrained_k2.formats.kimi_k3 import ARGUMENT, CLOSE, MESSAGE, SEPARATOR
from constrained_k2.prompts.xtml.options import read_options
from constrained_k2.prompts.xtml.prompt import write_prompt

_OPENING = 6  # special tokens and texts of the opened answer: a message and its first block
_CLOSING = f"{CLOSE}{ARGUMENT}{SEPARATOR}"
_HOSTILE = json.dumps(
    {
        "text": f' {_CLOSING} &quot; "\n',
        'a "key" & more': "北京",
        "number": -12.5,
        "nested": {"b": [1, "é", None], "a": {}},
        "switch": False,
        "nothing": None,
    },
    ensure_ascii=False,
)


def expected(body: dict[str, Any]) -> Prompt:
    """The prompt of a request, as the checkpoint's encoder writes it."""
    pieces: list[Piece] = []
    for text, special in write_prompt(body, read_options(body)).items:
        if pieces and not special and not pieces[-1].special:
            pieces[-1] = Piece(pieces[-1].text + text)
        else:
            pieces.append(Piece(text, special))
    return pieces


async def generation_prompt(target: Target) -> Finding:
    """The prompt ends in the opened answer of the assistant."""
    return judge_generation_prompt(await target.prompt({"messages": [user("Hello.")]}), target.rendering)


def judge_generation_prompt(prompt: Prompt, remedy: str) -> Finding:
    """The finding for one prompt, which ends in the opened reasoning or response."""
    bodies = ({"messages": [user("Hello.")], "chat_template_kwargs": {"thinking": switch}} for switch in (True, False))
    end = "".join(piece.text for piece in prompt[-_OPENING:])
    if any(list(prompt[-_OPENING:]) == list(expected(body)[-_OPENING:]) for body in bodies):
        return ok(f"the prompt ends with {end}")
    return fault(f"the prompt ends with {printable(end[-80:])!r}: the model goes on as another role", remedy)


async def history(target: Target) -> Finding:
    """A dialog reaches the model as it was: reasoning, calls to the character, results in the order of their calls."""
    turns = [{"role": "assistant", "content": "4", name: "Two and two."} for name in ("reasoning", "reasoning_content")]
    questions: list[dict[str, Any]] = [message for turn in turns for message in (user("2 + 2?"), turn)]
    mixed = _history(("a", "b"), (("b", "booked"), ("a", "2 tables")))
    body = {"messages": [*questions, *mixed, *_history(("c",), (("c", "none"),))], "tools": TOOLS}
    return judge_history(await target.prompt(body), expected(body), "the history", target.rendering)


async def results_paired(target: Target) -> Finding:
    """Results whose ids are unknown or repeated are written under the functions that they answer."""
    right = expected({"messages": _history(("a", "b"), (("a", "2 tables"), ("b", "booked")))})
    remedy = f"{target.repairing}; or send the ids of calls"
    for name, ids, results in (
        ("an unknown id beside a known one", ("a", "b"), (("unknown", "booked"), ("a", "2 tables"))),
        ("an id that two calls share", ("a", "a"), (("a", "2 tables"), ("a", "booked"))),
    ):
        prompt = await target.prompt({"messages": _history(ids, results), "tools": TOOLS})
        finding = judge_history(prompt, right, f"a history with {name}", remedy)
        if finding.verdict != "ok":
            return finding
    return ok("results with unknown and with shared ids are written under the functions that they answer")


def judge_history(prompt: Prompt, right: Prompt, name: str, remedy: str) -> Finding:
    """The finding for one prompt beside the right one, from the first message of the user on."""
    found, due = (_dialog(each) for each in (prompt, right))
    end = Piece("nothing")
    for number, (was, became) in enumerate(zip_longest(due, found, fillvalue=end)):
        if was != became:
            one, other = (printable(piece.text, 100) for piece in (was, became))
            before = printable("".join(piece.text for piece in due[max(0, number - 3) : number]), 80)
            return fault(f"in {name}, {one!r} becomes {other!r} after {before!r}", remedy)
    return ok(f"{name} reaches the model as it was, to the character")


def _dialog(prompt: Prompt) -> Prompt:
    start = next((at for at, piece in enumerate(prompt) if piece.text == f'{MESSAGE} role="user"'), 0)
    return prompt[start:]


def _history(ids: Sequence[str], results: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """A dialog with calls of ``list_tables`` and ``book_table`` under these ids, and results: ids and their texts."""
    made = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}
        for call_id, name, text in zip(ids, ("list_tables", "book_table"), (_HOSTILE, "{}"), strict=False)
    ]
    return [
        user("Which tables are free?"),
        {"role": "assistant", "content": "", "tool_calls": made},
        *({"role": "tool", "tool_call_id": call_id, "content": text} for call_id, text in results),
        user("And tomorrow?"),
    ]
