"""Checks of prompts that are made of tags, against those that this package renders."""

import json
from collections.abc import Sequence
from typing import Any

from constrained_k2.evaluation.client import printable
from constrained_k2.evaluation.doctor.findings import Finding, fault, ok
from constrained_k2.evaluation.doctor.prompt import Piece, Prompt
from constrained_k2.evaluation.doctor.requests import TOOLS, user
from constrained_k2.evaluation.doctor.tags import Call, Tag, calls, messages, parts
from constrained_k2.evaluation.doctor.target import Target
from constrained_k2.formats.kimi_k3 import ARGUMENT, CLOSE, MESSAGE, RESPONSE, SEPARATOR, THINK
from constrained_k2.prompts.xtml.options import read_options
from constrained_k2.prompts.xtml.prompt import write_prompt

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
_BROKEN = "Send arguments as a JSON object, also those that the model got wrong: vLLM replaces others by {}"
_EFFORTS: tuple[dict[str, Any], ...] = ({}, {"thinking_effort": "low"}, {"thinking": False})
_FORM = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object", "required": ["a"]}}}


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
    header = Tag(closes=False, name=MESSAGE, attributes={"role": "assistant"})
    channels = [Tag(closes=False, name=name, attributes={}) for name in (THINK, RESPONSE)]
    if parts(prompt)[-2:] in [[header, channel] for channel in channels]:
        return ok(f"the prompt ends with {''.join(piece.text for piece in prompt[-6:])}")
    end = "".join(piece.text for piece in prompt[-6:])
    return fault(f"the prompt ends with {printable(end[-80:])!r}: the model goes on as another role", remedy)


async def history(target: Target) -> Finding:
    """Calls of the history are written as they were: indexes from 1 in every turn, keys, types and values."""
    body = {"messages": [*_TWO_CALLS, *_ONE_CALL], "tools": TOOLS}
    return judge_history(await target.prompt(body), expected(body), target.rendering)


def judge_history(prompt: Prompt, right: Prompt, remedy: str) -> Finding:
    """The finding for the calls of one prompt beside those of the right one."""
    found, due = (_calls(each) for each in (prompt, right))
    if found == due:
        return ok(f"{len(due)} calls of the history are written as they were, to the character")
    if len(found) != len(due):
        return fault(f"the history has {len(due)} calls, the prompt {len(found)}", remedy)
    wrong, call = next((one, other) for one, other in zip(found, due, strict=True) if one != other)
    if (wrong.name, wrong.index) != (call.name, call.index):
        one, other = (
            f"{printable(each.name, 40)} with the index {printable(each.index, 20)}" for each in (wrong, call)
        )
        return fault(f"a call of {other} is written as a call of {one}", remedy)
    if wrong.raw != call.raw or len(wrong.arguments) != len(call.arguments):
        return fault(f"in a call {_shown(call)} becomes {_shown(wrong)}", remedy)
    sent, written = next(
        (each, other) for each, other in zip(call.arguments, wrong.arguments, strict=True) if each != other
    )
    one, other = (
        "key {!r}, type {!r}, value {!r}".format(*(printable(part, 40) for part in (each.key, each.type, each.value)))
        for each in (sent, written)
    )
    return fault(f"an argument with {one} is written with {other}", remedy)


def _shown(call: Call) -> str:
    return f"an object of {len(call.arguments)} keys" if call.raw is None else f"the text {printable(call.raw, 60)!r}"


async def reasoning(target: Target) -> Finding:
    """The reasoning of the history is written, under either name, and every turn has its blocks."""
    for name in ("reasoning", "reasoning_content"):
        turn = {"role": "assistant", "content": "4", name: "Two and two."}
        body = {"messages": [user("2 + 2?"), turn, user("And 3 + 3?")]}
        found, due = (
            next((message for message in messages(prompt) if RESPONSE in message.tags), None)
            for prompt in (await target.prompt(body), expected(body))
        )
        if found is None or due is None or found.block(RESPONSE) != due.block(RESPONSE):
            return fault("an answer of the history has no response in the prompt", target.rendering)
        if found.block(THINK) != due.block(THINK):
            seen = f"the {name} {due.block(THINK)!r} of the history becomes {printable(str(found.block(THINK)), 40)!r}"
            return fault(seen, f"{target.repairing}; or send it as reasoning")
    return ok("reasoning of the history is written, as reasoning and as reasoning_content")


async def results_in_order(target: Target) -> Finding:
    """Results are written in the order of their calls, under the names of their functions."""
    mixed = _history(("a", "b"), (("b", "booked"), ("a", "2 tables")))
    body = {"messages": [*mixed, *_ONE_CALL], "tools": TOOLS}
    return judge_results(await target.prompt(body), expected(body), "results with right ids", target.rendering)


async def results_paired(target: Target) -> Finding:
    """Results whose ids are unknown or repeated are written under the functions that they answer."""
    right = expected({"messages": _TWO_CALLS})
    for name, ids, results in (
        ("an unknown id beside a known one", ("a", "b"), (("unknown", "booked"), ("a", "2 tables"))),
        ("an id that two calls share", ("a", "a"), (("a", "2 tables"), ("a", "booked"))),
    ):
        prompt = await target.prompt({"messages": _history(ids, results), "tools": TOOLS})
        finding = judge_results(prompt, right, f"results with {name}", f"{target.repairing}; or send the ids of calls")
        if finding.verdict != "ok":
            return finding
    return ok("results with unknown and with shared ids are written under the functions that they answer")


def judge_results(prompt: Prompt, right: Prompt, name: str, remedy: str) -> Finding:
    """The finding for the results of one prompt beside those of the right one."""
    found, due = (
        [
            tuple(
                printable(text, 40) for text in (each.text, each.attributes.get("tool", ""), each.attributes["index"])
            )
            for each in messages(each)
            if each.attributes.get("role") == "tool" and "index" in each.attributes
        ]
        for each in (prompt, right)
    )
    if found == due:
        return ok(f"{name} are written in the order of their calls, under the names of their functions")
    written, sent = (", ".join("{!r} of {} {}".format(*each) for each in results) or "none" for results in (found, due))
    return fault(f"{name} are written as {written}, not as {sent}", remedy)


def _calls(prompt: Prompt) -> list[Call]:
    return [call for message in messages(prompt) for call in calls(message.parts)]


def _history(
    ids: Sequence[str], results: Sequence[tuple[str, str]], *, content: str | None = "", arguments: str = _HOSTILE
) -> list[dict[str, Any]]:
    """A dialog with calls of ``list_tables`` and ``book_table`` under these ids, and results: ids and their texts."""
    made = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}
        for call_id, name, text in zip(ids, ("list_tables", "book_table"), (arguments, "{}"), strict=False)
    ]
    return [
        user("Which tables are free?"),
        {"role": "assistant", "content": content, "tool_calls": made},
        *({"role": "tool", "tool_call_id": call_id, "content": text} for call_id, text in results),
        user("And tomorrow?"),
    ]


_TWO_CALLS = _history(("a", "b"), (("a", "2 tables"), ("b", "booked")))
_ONE_CALL = _history(("c",), (("c", "none"),))
