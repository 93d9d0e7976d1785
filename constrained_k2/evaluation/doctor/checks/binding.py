"""Checks whether constraints bind, or the model merely happens to obey.

Each request is sent with a prompt that asks for the opposite, and again with a ``logit_bias`` that pushes any model off
the format. A mask resists both; a server that only parses or corrects the output fails one of them.
"""

from typing import Any

from constrained_k2.evaluation.answer import ChatAnswer, Record
from constrained_k2.evaluation.client import NotServed, Refused, printable
from constrained_k2.evaluation.doctor.findings import Finding, fault, ok
from constrained_k2.evaluation.doctor.prompt import between
from constrained_k2.evaluation.doctor.requests import DOTTED, EAGER, UNFIT, UNWILLING, chat, history, named
from constrained_k2.evaluation.doctor.target import PUSH, Target
from constrained_k2.evaluation.judge import KINDS, judge
from constrained_k2.evaluation.sample import Sample
from constrained_k2.formats import kimi_k2 as k2
from constrained_k2.formats.kimi_k2 import CALL_BEGIN, TURN_END

MAX_TOKENS = 2048  # some models reason for long before they call
_SAMPLES = 4


async def required(target: Target) -> Finding:
    """``tool_choice: required`` yields a call, though the model is told and pushed not to."""
    return await _judge(target, chat(UNWILLING), push=TURN_END)


async def arguments(target: Target) -> Finding:
    """Arguments are valid, though the prompt asks for values outside the schema."""
    return await _judge(target, chat(UNFIT, parallel_tool_calls=False), push=TURN_END)


async def call_ids(target: Target) -> Finding:
    """Ids are ``functions.NAME:INDEX``, unique, and count on from the history."""
    body = chat(EAGER)
    return await _judge(target, body | {"messages": [*history("functions.list_tables:0")[:-1], *body["messages"]]})


async def named_function(target: Target) -> Finding:
    """A named function is called once, whatever the prompt asks for."""
    return await _judge(target, chat(UNFIT, named("list_tables")), push=TURN_END)


async def single(target: Target) -> Finding:
    """``parallel_tool_calls: false`` yields one call, whatever the prompt asks for."""
    return await _judge(target, chat(EAGER, parallel_tool_calls=False), push=CALL_BEGIN)


async def auto(target: Target) -> Finding:
    """Under ``tool_choice: auto`` calls are constrained, though none is required."""
    ids = await target.pushed(chat(EAGER, "auto"), k2.SECTION_BEGIN)
    if (begins := ids.count(target.marker(k2.SECTION_BEGIN))) > 1:
        seen = (
            f"{begins} of {len(ids)} tokens, pushed by a logit_bias, open calls: nothing constrains tool_choice 'auto'"
        )
        return fault(seen, target.constraining)
    return ok("a section of calls opens only once, though a logit_bias pushes its marker")


async def special_tokens(target: Target) -> Finding:
    """Strings in calls contain no special tokens: a parser would take them for markers, or drop them."""
    count = await target.special_tokens_in_a_string()
    if count is None:
        return Finding("cannot tell", "no arguments came", target.constraining)
    if count:
        return fault(f"a string contains special tokens: {k2.MIDDLE} {count} times", target.constraining)
    return ok(f"a string contains no special token, though a logit_bias pushes {k2.MIDDLE}")


async def dotted_names(target: Target) -> Finding:
    """Names with dots are returned whole."""
    names = {tool["function"]["name"] for tool in DOTTED}
    answers = [
        await target.chat(chat("Send it.", named(name), tools=DOTTED, max_tokens=MAX_TOKENS)) for name in sorted(names)
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
    answers = await _ask(target, chat(EAGER, "none", max_tokens=256), push=k2.SECTION_BEGIN)
    if called := sum(bool(answer.calls) for answer in answers):
        return fault(f"{called} of {len(answers)} answers hold calls", target.constraining)
    if leaked := [answer.content for answer in answers if k2.CALL_MARKER_PREFIX in answer.content]:
        seen = f"{len(leaked)} of {len(answers)} answers hold markers: {printable(leaked[0], 80)!r}"
        return fault(seen, target.constraining)
    return ok(f"{len(answers)} answers, no call and no marker")


async def exact_arguments(target: Target) -> Finding:
    """Ids and arguments are returned as sampled, by comparison with the sampled tokens."""
    compared = 0
    for seed in range(_SAMPLES):
        (answer, *_) = await target.chat(chat(EAGER, max_tokens=1024, temperature=1.0, seed=seed))
        if answer.token_ids is None:
            raise NotServed("return_token_ids is not served, so the sampled text cannot be compared")
        pieces = await target.pieces(answer.token_ids)
        ids, texts = between(pieces, CALL_BEGIN, k2.ARGUMENT_BEGIN), between(pieces, k2.ARGUMENT_BEGIN, k2.CALL_END)
        if not texts and answer.calls and answer.finish_reason != "length":
            return Finding("cannot tell", "calls are not written in Kimi's format here", target.constraining)
        for (call_id, _, returned), written_id, written in zip(answer.calls, ids, texts, strict=False):
            if (call_id, returned) != (written_id, written):
                pair = (written, returned) if returned != written else (written_id, call_id)
                was, became = (repr(printable(text, 70)) for text in pair)
                return fault(f"the model wrote {was}, returned is {became}", target.parsing)
            compared += 1
        if answer.finish_reason != "length" and len(answer.calls) != len(texts):
            seen = f"the model wrote {len(texts)} calls, returned are {len(answer.calls)}"
            return fault(seen, target.parsing)
    if not compared:
        return Finding("cannot tell", f"no call came in {_SAMPLES} answers", target.constraining)
    return ok(f"{compared} calls are returned as they were written, to the character")


async def _ask(target: Target, body: dict[str, Any], push: str = "") -> list[ChatAnswer]:
    """Several answers to a request, and to the same with a special token made overwhelmingly likely."""
    body = {"max_tokens": MAX_TOKENS, "temperature": 1.0, "seed": 1, "n": _SAMPLES} | body
    pushes = [{"logit_bias": {str(target.marker(push)): PUSH}}] if push and target.markers is not None else []
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
    if problems := [problem for answer in complete if (problem := _problem(answer, body))]:
        return fault(f"{len(problems)} of {len(complete)} answers are wrong: {problems[0]}", target.constraining)
    calls = sum(len(answer.calls) for answer in complete)
    return ok(f"{len(complete)} answers, {calls} calls, all of them right")


def _problem(answer: ChatAnswer, body: dict[str, Any]) -> str:
    if not answer.calls:
        return f"no call, but {printable(answer.content, 60)!r}"
    if problems := judge(Sample(0, "", body), Record.of(answer)).problems:
        kind, _, details = problems[0].partition(": ")
        return f"{KINDS[kind]}: {printable(details)}"
    wanted, name = body["tool_choice"], answer.calls[0][1]
    if isinstance(wanted, dict) and name != wanted["function"]["name"]:
        return f"{printable(name, 60)} is called, not the named function"
    return ""
