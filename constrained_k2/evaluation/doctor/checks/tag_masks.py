"""Checks of a format of tags: whether masks hold every part of a call, and parsers go by token id.

Each request forces a call of a strict tool while a ``logit_bias`` pushes the model off one rule, so that an obedient
model does not hide a rule that nothing enforces.
"""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from constrained_k2.evaluation.client import printable
from constrained_k2.evaluation.doctor import tags
from constrained_k2.evaluation.doctor.findings import Finding, fault, ok
from constrained_k2.evaluation.doctor.prompt import Prompt
from constrained_k2.evaluation.doctor.requests import closed, forced, user
from constrained_k2.evaluation.doctor.target import PUSH, TAG_TOKENS, Target
from constrained_k2.evaluation.judge import decode_arguments
from constrained_k2.formats.kimi_k3 import ARGUMENT, CALL, CLOSE, OPEN, RESPONSE, SEPARATOR, TOOLS

_BOOLEAN = {"type": "boolean"}
_UNION = {"anyOf": [{"type": "integer"}, _BOOLEAN]}
_DIGIT = "7"
_HEADER = re.compile(rf'{CALL} .*\bindex="([^"]*)')
_RESPONSE_TEXT = f"a {CLOSE}{RESPONSE}{SEPARATOR} {OPEN}{TOOLS}{SEPARATOR} b"
_ARGUMENT_TEXT = f"a {CLOSE}{ARGUMENT}{SEPARATOR} b"


async def required_keys(target: Target) -> Finding:
    """A call cannot end before its required arguments, though its end is pushed."""
    made = await _forced(target, closed(a=_BOOLEAN, b=_BOOLEAN), {target.wire.call_end: PUSH})
    if made is None:
        return _no_call(target)
    keys = {argument.key for argument in made.arguments}
    if made.is_closed and (lacking := {"a", "b"} - keys):
        seen = f"a call ends without its required arguments {', '.join(sorted(lacking))}, though the tool is strict"
        return fault(seen, target.constraining)
    return ok("a call does not end before its required arguments, though a logit_bias pushes its end")


async def keys_once(target: Target) -> Finding:
    """No argument is written twice, though a logit_bias pushes the opening of another one."""
    push = {target.wire.call_begin: PUSH, target.wire.call_end: PUSH / 2}
    made = await _forced(target, closed(a=_BOOLEAN), push)
    if made is None:
        return _no_call(target)
    counts = Counter(argument.key for argument in made.arguments)
    if repeated := [key for key, count in counts.items() if count > 1]:
        seen = f"the argument {printable(repeated[0], 40)!r} is written {counts[repeated[0]]} times in one call"
        return fault(f"{seen}: the last one counts", target.constraining)
    return ok("no argument is written twice, though a logit_bias pushes another one")


async def indexes(target: Target) -> Finding:
    """The first call of a turn has the index that prompts have there, though a logit_bias pushes another digit."""
    push = {target.wire.call_end: PUSH, await target.token(_DIGIT): PUSH / 2}
    pieces = await target.pushed(target.brief | forced("pick", closed(a=_BOOLEAN)), push, TAG_TOKENS)
    index = next((found[1] for piece in pieces if (found := _HEADER.match(piece.text))), None)  # it may have no end
    if index is None:
        return _no_call(target)
    if index != str(target.wire.first_index):
        seen = f"the first call of a turn has the index {printable(index, 40)!r}, not {target.wire.first_index}"
        return fault(seen, target.constraining)
    return ok(f"the first call has the index {index}, though a logit_bias pushes the digit {_DIGIT}")


async def spelled_tags(target: Target) -> Finding:
    """Text that spells a tag in ordinary tokens is returned whole, in an answer and in an argument."""
    ban = {getattr(target.wire, name): -PUSH for name in ("call_begin", "call_end", "argument_begin")}
    schema = closed(text={"const": _RESPONSE_TEXT})
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    body = {"messages": [user("Answer.")], "response_format": form, "max_tokens": TAG_TOKENS, "temperature": 0.0}
    bias = {"logit_bias": {str(token_id): strength for token_id, strength in ban.items()}}
    (answer, *_) = await target.chat(target.brief | body | bias)
    compared = 0
    if answer.token_ids is not None and _RESPONSE_TEXT in (text := _first_text(await target.pieces(answer.token_ids))):
        if answer.content != text:
            return _cut(target, text, answer.content)
        compared += 1
    body = forced("search", closed(query={"const": _ARGUMENT_TEXT}))
    (answer, *_) = await target.chat(target.brief | body | {"max_tokens": TAG_TOKENS, "temperature": 0.0})
    if answer.token_ids is not None and answer.calls:
        made = tags.calls(tags.parts(await target.pieces(answer.token_ids)))
        if made and any(argument.value == _ARGUMENT_TEXT and not argument.specials for argument in made[0].arguments):
            returned, _ = decode_arguments(answer.calls[0][2])
            if returned != {"query": _ARGUMENT_TEXT}:
                return _cut(target, _ARGUMENT_TEXT, answer.calls[0][2])
            compared += 1
    if not compared:
        return Finding("cannot tell", "the model wrote no text that spells a tag", target.constraining)
    return ok("text that spells a tag comes back whole")


def _cut(target: Target, written: str, returned: str) -> Finding:
    seen = f"the model wrote {printable(written, 80)!r} in ordinary tokens, returned is {printable(returned, 60)!r}"
    return fault(seen, f"Parse by token id: {target.parsing}")


def _first_text(pieces: Prompt) -> str:
    """The text before the first special token."""
    return "" if not pieces or pieces[0].special else pieces[0].text


async def _forced(target: Target, schema: dict[str, Any], push: Mapping[int, float]) -> tags.Call | None:
    """The call that a request forces while some tokens are pushed; None if it does not come."""
    pieces = await target.pushed(target.brief | forced("pick", schema), push, TAG_TOKENS)
    return next(iter(tags.calls(tags.parts(pieces))), None)


def _no_call(target: Target) -> Finding:
    return fault("no call came, though a strict tool is required", target.constraining)
