"""Checks whether constraints bind, or the model merely happens to obey.

Each request is sent with a prompt that asks for the opposite, and again with a ``logit_bias`` that pushes any model off
the format. A mask resists both; a server that only parses or corrects the output fails one of them.
"""

from typing import Any

from constrained_k2.evaluation.answer import ChatAnswer, Record
from constrained_k2.evaluation.client import Refused
from constrained_k2.evaluation.doctor.findings import Finding, fault, ok
from constrained_k2.evaluation.doctor.prompt import stray
from constrained_k2.evaluation.doctor.requests import DOTTED, EAGER, UNFIT, UNWILLING, chat, history, named
from constrained_k2.evaluation.doctor.target import MARKER_TOKENS, PUSH, TAG_TOKENS, Target
from constrained_k2.evaluation.judge import KINDS, judge
from constrained_k2.evaluation.sample import Sample
from constrained_k2.explain.view import printable
from constrained_k2.formats import kimi_k2 as k2
from constrained_k2.formats import kimi_k3 as k3

MAX_TOKENS = 2048  # some models reason for long before they call
_SAMPLES = 4
_FIRST_ID = "functions.list_tables:0"


async def required(target: Target) -> Finding:
    """``tool_choice: required`` yields a call, though the model is told and pushed not to."""
    return await _judge(target, chat(UNWILLING), push="turn_end")


async def arguments(target: Target) -> Finding:
    """Arguments are valid, though the prompt asks for values outside the schema."""
    return await _judge(target, chat(UNFIT, parallel_tool_calls=False), push="turn_end")


async def call_ids(target: Target) -> Finding:
    """Ids are ``functions.NAME:INDEX``, unique, and count on from the history."""
    return await _judge(target, _continued())


async def distinct_ids(target: Target) -> Finding:
    """Every call has an id of its own in the dialog, by which its result is paired with it."""
    answers = await _ask(target, _continued())
    made = 0
    for ids in [[call_id for call_id, _, _ in answer.calls] for answer in answers]:
        made += len(ids)
        if not all(ids) or len({*ids, _FIRST_ID}) < len(ids) + 1:
            seen = ", ".join(repr(printable(call_id, 60)) for call_id in ids[:4])
            return fault(f"calls after {_FIRST_ID!r} have the ids {seen}: results cannot be paired", target.parsing)
    if not made:
        return Finding("cannot tell", f"no call came in {len(answers)} answers", target.constraining)
    return ok(f"{made} calls, each with an id of its own in the dialog")


async def named_function(target: Target) -> Finding:
    """A named function is called once, whatever the prompt asks for."""
    return await _judge(target, chat(UNFIT, named("list_tables")), push="turn_end")


async def single(target: Target) -> Finding:
    """``parallel_tool_calls: false`` yields one call, whatever the prompt asks for."""
    return await _judge(target, chat(EAGER, parallel_tool_calls=False), push="call_begin")


async def auto(target: Target) -> Finding:
    """Under ``tool_choice: auto`` calls are constrained, though none is required."""
    wire, body = target.wire, target.brief | chat(EAGER, "auto")
    if target.uses_tags:  # the stronger push leads into calls, the other one out of the text
        pieces = await target.pushed(body, {wire.call_begin: PUSH, wire.call_end: PUSH / 2}, TAG_TOKENS)
        wrong, what = stray(pieces), "are not part of a tag"
        right = "all pushed markers are part of tags"
    else:
        pieces = await target.pushed(body, {wire.section_begin: PUSH}, MARKER_TOKENS)
        wrong, what = pieces.count((k2.SECTION_BEGIN, True)), "open calls"
        wrong = wrong if wrong > 1 else 0
        right = "a section of calls opens only once, though a logit_bias pushes its marker"
    if wrong:
        seen = f"{wrong} of {len(pieces)} tokens and texts, pushed by a logit_bias, {what}"
        return fault(f"{seen}: nothing constrains tool_choice 'auto'", target.constraining)
    return ok(right)


async def special_tokens(target: Target) -> Finding:
    """Strings in calls contain no special tokens: a parser would take them for markers, or drop them."""
    count = await target.special_tokens_in_a_string()
    if count is None:
        return Finding("cannot tell", "no arguments came", target.constraining)
    pushed = k2.BOS if target.uses_tags else k2.MIDDLE
    if count:
        return fault(f"a string contains special tokens: {pushed} {count} times", target.constraining)
    return ok(f"a string contains no special token, though a logit_bias pushes {pushed}")


async def dotted_names(target: Target) -> Finding:
    """Names with dots are returned whole."""
    names = {tool["function"]["name"] for tool in DOTTED}
    answers = [
        await target.chat(target.brief | chat("Send it.", named(name), tools=DOTTED, max_tokens=MAX_TOKENS))
        for name in sorted(names)
    ]
    calls = [call for (answer, *_) in answers for call in answer.calls]
    for call_id, name, _ in calls:
        if name not in names:
            seen = f"the call {printable(call_id, 60)!r} is returned with the name {printable(name, 60)!r}"
            return fault(seen, f"Declare tools without dots in their names. Or: {target.parsing}")
    if not calls:
        return Finding("cannot tell", "no call came", target.constraining)
    return ok(f"{len(calls)} calls of tools with dots in their names are returned with the whole name")


async def none(target: Target) -> Finding:
    """``tool_choice: none`` yields no call and no marker, whatever the prompt asks for."""
    push = "call_begin" if target.uses_tags else "section_begin"
    answers = await _ask(target, chat(EAGER, "none", max_tokens=256), push)
    if called := sum(bool(answer.calls) for answer in answers):
        return fault(f"{called} of {len(answers)} answers hold calls", target.constraining)
    leaking = (k3.OPEN, k3.CLOSE, k3.SEPARATOR) if target.uses_tags else (k2.CALL_MARKER_PREFIX,)
    if leaked := [answer.content for answer in answers if any(text in answer.content for text in leaking)]:
        seen = f"{len(leaked)} of {len(answers)} answers hold markers: {printable(leaked[0], 80)!r}"
        return fault(seen, target.constraining)
    return ok(f"{len(answers)} answers, no call and no marker")


def _continued() -> dict[str, Any]:
    body = chat(EAGER)
    return body | {"messages": [*history(_FIRST_ID)[:-1], *body["messages"]]}


async def _ask(target: Target, body: dict[str, Any], push: str = "") -> list[ChatAnswer]:
    """Several answers to a request, and to the same with a marker, by its field, made overwhelmingly likely."""
    body = {"max_tokens": MAX_TOKENS, "temperature": 1.0, "seed": 1, "n": _SAMPLES} | target.brief | body
    pushes = [{"logit_bias": {str(getattr(target.format, push)): PUSH}}] if push and target.format else []
    answers: list[ChatAnswer] = []
    for bias in [{}, *pushes]:
        try:
            found = await _choices(target, body | bias)
            for seed in range(len(found), _SAMPLES):  # the server ignores ``n``
                found += (await target.chat(body | bias | {"n": 1, "seed": seed + 1}))[:1]
            answers += found
        except Refused as refusal:
            if not bias or "logit_bias" not in refusal.message:
                raise
    return answers


async def _choices(target: Target, body: dict[str, Any]) -> list[ChatAnswer]:
    """The choices of a request, or a single one if the server refuses ``n``."""
    try:
        return await target.chat(body)
    except Refused as refusal:
        if "n=1" not in refusal.message:
            raise
        return await target.chat(body | {"n": 1})


async def _judge(target: Target, body: dict[str, Any], push: str = "") -> Finding:
    answers = await _ask(target, body, push)
    complete = [answer for answer in answers if answer.finish_reason != "length"]
    if not complete:
        seen = f"none of {len(answers)} answers ended within {MAX_TOKENS} tokens"
        return Finding("cannot tell", seen, "Try again, or with thinking off by default")
    ids = not target.uses_tags  # the model writes them
    if problems := [problem for answer in complete if (problem := _problem(answer, body, ids=ids))]:
        return fault(f"{len(problems)} of {len(complete)} answers are wrong: {problems[0]}", target.constraining)
    calls = sum(len(answer.calls) for answer in complete)
    return ok(f"{len(complete)} answers, {calls} calls, all of them right")


def _problem(answer: ChatAnswer, body: dict[str, Any], *, ids: bool) -> str:
    if not answer.calls:
        return f"no call, but {printable(answer.content, 60)!r}"
    problems = (problem.partition(": ") for problem in judge(Sample(0, "", body), Record.of(answer)).problems)
    for kind, _, details in problems:
        if kind == "wrong_id" and not ids:
            continue
        return f"{KINDS[kind]}: {printable(details)}"
    wanted, name = body["tool_choice"], answer.calls[0][1]
    if isinstance(wanted, dict) and name != wanted["function"]["name"]:
        return f"{printable(name, 60)} is called, not the named function"
    return ""
