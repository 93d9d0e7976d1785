"""Checks of how answers are returned: streamed, cut off, and with reasoning."""

from itertools import takewhile
from operator import attrgetter
from typing import Any

from constrained_k2.evaluation.answer import ChatAnswer
from constrained_k2.evaluation.client import NotServed
from constrained_k2.evaluation.doctor.findings import Finding, fault, ok
from constrained_k2.evaluation.doctor.prompt import Prompt, opens_reasoning
from constrained_k2.evaluation.doctor.requests import EAGER, UNFIT, UNWILLING, chat, named, user
from constrained_k2.evaluation.doctor.target import PUSH, Target
from constrained_k2.evaluation.judge import decode_arguments
from constrained_k2.explain.view import printable
from constrained_k2.formats import kimi_k2 as k2
from constrained_k2.formats import kimi_k3 as k3

_TAGS = (f"{k3.OPEN}{k3.THINK}{k3.SEPARATOR}", f"{k3.CLOSE}{k3.THINK}{k3.SEPARATOR}")  # begin and end of reasoning
_TRIES = 3
_BODIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("required", chat(EAGER, max_tokens=512)),
    ("auto", chat(EAGER, "auto", max_tokens=512)),
    ("auto, in prose", chat(UNWILLING, "auto", max_tokens=64)),
)
_SEEDS = range(3, 7)
_END = 4  # tokens after a whole call's arguments: the last brace, the ends of call, section and turn
_ENDS = 3  # tags that end after a call's arguments: those of the call, the section and the message


async def end_token(target: Target) -> Finding:
    """An answer ends with the token that ends a turn."""
    end, text = target.wire.turn_end, target.wire.marker_texts["turn_end"]
    body = target.brief | {"messages": [user("Hello.")], "max_tokens": 16, "temperature": 0.0}
    (answer, *_) = await target.chat(body | {"logit_bias": {str(end): PUSH}})
    if answer.token_ids is None:
        raise NotServed("return_token_ids is not served, so special tokens cannot be seen")
    count = answer.token_ids.count(end)
    if count > 1 or (count and answer.finish_reason == "length"):
        remedy = f"Set eos_token_id to {end} in the checkpoint's generation_config.json, beside the tokenizer's own"
        return fault(
            f"answers go on after {text}: {count} of {len(answer.token_ids)} tokens, though it ends them", remedy
        )
    if not count:
        seen = f"the model does not write {text}, though a logit_bias pushes it"
        return Finding("cannot tell", seen, "See whether the server takes logit_bias")
    return ok(f"an answer ends with {text}")


async def stream_agrees(target: Target) -> Finding:
    """A seeded request has the same answer streamed and whole, at temperature 0 and 1."""
    compared = 0
    for name, body in _BODIES:
        for temperature in (0.0, 1.0):
            seeded = target.brief | body | {"temperature": temperature, "seed": 11}
            for _ in range(_TRIES):
                (whole, *_), streamed = await target.chat(seeded), await target.chat_streamed(seeded)
                if await _is_same_text(target, seeded, whole, streamed):
                    if difference := disagreement(whole, streamed, ids=not target.uses_tags):
                        remedy = target.constraining
                        if not target.parser:
                            on = target.python_front_end if target.rust else target.switching_on
                            remedy = f"Parse by token id: {on}"
                        return fault(f"{name}: {difference}", remedy)
                    compared += 1
                    break
    if not compared:
        seen = "the model does not write the same text twice, even seeded and at temperature 0"
        return Finding("cannot tell", seen, "Try again while the server is idle")
    return ok(f"{compared} answers are the same, streamed and whole")


async def _is_same_text(target: Target, body: dict[str, Any], whole: ChatAnswer, streamed: ChatAnswer) -> bool:
    """True if both answers have equal tokens; without token ids, if the request gives an equal answer twice."""
    if whole.token_ids is not None and streamed.token_ids is not None:
        return whole.token_ids == streamed.token_ids
    (again, *_) = await target.chat(body)
    if target.uses_tags:  # ids are the server's own
        return not disagreement(whole, again, ids=False)
    parts = attrgetter("finish_reason", "reasoning", "content", "calls")
    return bool(parts(whole) == parts(again))


def disagreement(whole: ChatAnswer, streamed: ChatAnswer, *, ids: bool) -> str:
    """The forbidden difference between two answers from the same tokens; only a stream may show a call that is cut.

    ``ids``: the model writes the ids of calls; a server that makes them up may give each answer others.
    """
    if whole.finish_reason != streamed.finish_reason:
        one, other = printable(whole.finish_reason), printable(streamed.finish_reason)
        return f"finish_reason is {one!r} whole and {other!r} streamed"
    for name in ("reasoning", "content"):
        one, other = getattr(whole, name), getattr(streamed, name)
        if one != other:
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
            start = max(0, same - 20)
            return f"{name} differs: {printable(one[start:], 50)!r} whole and {printable(other[start:], 50)!r} streamed"
    one_calls, other_calls = ([call if ids else call[1:] for call in each.calls] for each in (whole, streamed))
    more = len(other_calls) - len(one_calls)
    if other_calls[: len(one_calls)] != one_calls or not 0 <= more <= (whole.finish_reason == "length"):
        texts = (", ".join(f"{call[0]} {call[-1]!r}" for call in calls) for calls in (one_calls, other_calls))
        one, other = (printable(text, 120) or "none" for text in texts)
        return f"the calls differ: {one} whole and {other} streamed"
    return ""


async def cut_calls(target: Target) -> Finding:
    """A call that ``max_tokens`` cuts off is not returned: the same calls are requested with a few tokens too few."""
    cut: list[str] = []
    for name, body, calls in (
        ("the call", chat(UNFIT, named("book_table")), 1),
        ("the last of several calls", chat(EAGER, "auto"), 2),
    ):
        seeded, tokens, limit = await _with_calls(target, target.brief | body, calls)
        if not tokens:
            continue
        (whole, *_) = await target.chat(seeded | {"max_tokens": limit})
        streamed = await target.chat_streamed(seeded | {"max_tokens": limit})
        if problem := _cut_problem(target, whole, streamed, limit):
            return fault(f"{name} is cut after {limit} of {tokens} tokens, and {problem}", target.parsing)
        if whole.finish_reason == "length":
            cut.append(name)
    if not cut:
        return Finding("cannot tell", "no call came twice, so none could be cut off", target.constraining)
    return ok(f"{' and '.join(cut)}: cut off, it is not returned, and finish_reason is 'length'")


async def _with_calls(target: Target, body: dict[str, Any], count: int) -> tuple[dict[str, Any], int, int]:
    """The request with a seed that yields so many calls, its tokens, and those before the last call's end.

    All tokens are 0 if no seed does.
    """
    for seed in _SEEDS:
        seeded = body | {"max_tokens": 1024, "temperature": 1.0, "seed": seed}
        (answer, *_) = await target.chat(seeded)
        if answer.tokens and answer.finish_reason != "length" and len(answer.calls) >= count:
            return seeded, answer.tokens, max(1, answer.tokens - _end(target, answer))
    return body, 0, 0


def _end(target: Target, answer: ChatAnswer) -> int:
    """The number of tokens from the end of the last call on."""
    if not target.uses_tags:
        return _END
    ends = [at for at, token_id in enumerate(answer.token_ids or ()) if token_id == target.wire.call_end]
    if len(ends) < _ENDS:
        raise NotServed("return_token_ids is not served, so the end of a call cannot be found")
    return len(answer.token_ids or ()) - ends[-_ENDS]


def _cut_problem(target: Target, whole: ChatAnswer, streamed: ChatAnswer, limit: int) -> str:
    ended = target.format and whole.token_ids is not None and whole.token_ids[-1:] == (target.format.turn_end,)
    if whole.tokens is not None and whole.tokens >= limit and not ended and whole.finish_reason != "length":
        return f"finish_reason is {printable(whole.finish_reason)!r}"
    if broken := _broken(whole):
        return f"it is returned with the arguments {printable(broken[0], 80)!r}"
    if _broken(streamed) and streamed.finish_reason != "length":  # a stream cannot take back what it has shown
        return f"the stream ends with finish_reason {printable(streamed.finish_reason)!r}"
    return ""


def _broken(answer: ChatAnswer) -> list[str]:
    """The arguments that are not a JSON object."""
    return [arguments for _, _, arguments in answer.calls if decode_arguments(arguments)[1]]


async def thinking(target: Target) -> Finding:
    """``chat_template_kwargs.thinking`` switches the reasoning, which is returned apart from the content."""
    begin, end = _TAGS if target.uses_tags else (k2.THINK_BEGIN, k2.THINK_END)
    prompts: dict[bool, Prompt] = {}
    answers: dict[bool, ChatAnswer] = {}
    for switch in (True, False):
        body = {"messages": [user("What is 17 + 25?")], "chat_template_kwargs": {"thinking": switch}}
        prompts[switch] = await target.prompt(body)
        (answers[switch], *_) = await target.chat(body | {"max_tokens": 256, "temperature": 0.0})
        content = answers[switch].content
        unended = answers[switch].finish_reason == "length" and content and not answers[switch].reasoning
        is_open = opens_reasoning(prompts[switch]) and (end in content or unended)
        if is_open or content.lstrip().startswith(begin):
            seen = f"thinking {str(switch).lower()}: the content holds the reasoning: {printable(content, 60)!r}"
            return fault(seen, target.reasoning_parser)
    reasoning = answers[False].reasoning
    if prompts[True] == prompts[False]:
        if reasoning:
            seen = "thinking false has no effect: this checkpoint's template has no such switch, and the model reasons"
            return Finding("warning", seen, "Use a checkpoint with a switch (K2.5 and later), or K2-Instruct")
        return ok("the switch is accepted; this checkpoint's template ignores it, and the model does not reason")
    if reasoning:
        seen = f"thinking false, and the answer reasons: {printable(reasoning, 60)!r}"
        template = "Use the checkpoint's current chat template, and vLLM 0.32 or later"
        return fault(seen, target.rendering if target.uses_tags else template)
    return ok("the switch changes the prompt, and reasoning comes apart from the content")
