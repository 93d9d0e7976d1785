"""Is a stream the same answer as a whole one?"""

from typing import Any

from constrained_k2.evaluation.chat_answer import ChatAnswer
from constrained_k2.evaluation.doctor.bodies import EAGER, UNWILLING, chat
from constrained_k2.evaluation.doctor.finding import Finding, ok, shown
from constrained_k2.evaluation.doctor.remedies import SWITCH_ON, constraining
from constrained_k2.evaluation.doctor.target import Target

_TRIES = 3
_BODIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("required", chat(EAGER, max_tokens=512)),
    ("auto", chat(EAGER, "auto", max_tokens=512)),
    ("auto, in prose", chat(UNWILLING, "auto", max_tokens=64)),
)


async def stream_agrees(target: Target) -> Finding:
    """The same seeded request, streamed and whole, at temperature 0 and 1."""
    compared = 0
    for name, body in _BODIES:
        for temperature in (0.0, 1.0):
            seeded = body | {"temperature": temperature, "seed": 11}
            for _ in range(_TRIES):
                (whole, *_), streamed = await target.chat(seeded), await target.chat_streamed(seeded)
                if not await _is_same_text(target, seeded, whole, streamed):
                    continue
                if difference := disagreement(whole, streamed):
                    seen = f"{name}: {difference}"
                    remedy = constraining(target) if target.is_ours else f"Parse by token id: {SWITCH_ON}"
                    return Finding("fault", seen, remedy)
                compared += 1
                break
    if not compared:
        seen = "the model does not write the same text twice, even seeded and at temperature 0"
        return Finding("cannot tell", seen, "Try again while the server is idle")
    return ok(f"{compared} answers are the same, streamed and whole")


async def _is_same_text(target: Target, body: dict[str, Any], whole: ChatAnswer, streamed: ChatAnswer) -> bool:
    """Whether the model wrote the same tokens both times; where they are not shown, whether it does so as a habit."""
    if whole.token_ids is not None and streamed.token_ids is not None:
        return whole.token_ids == streamed.token_ids
    (again, *_) = await target.chat(body)
    return whole.said == again.said


def disagreement(whole: ChatAnswer, streamed: ChatAnswer) -> str:
    """How two answers made of the same tokens differ; empty if as they may.

    A stream has shown the beginning of a call by the time it is cut off; a whole answer keeps it back.
    """
    if whole.finish_reason != streamed.finish_reason:
        return f"finish_reason is {shown(whole.finish_reason)!r} whole and {shown(streamed.finish_reason)!r} streamed"
    for name in ("reasoning", "content"):
        one, other = getattr(whole, name), getattr(streamed, name)
        if one != other:
            place = next((i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
            start = max(0, (min(len(one), len(other)) if place is None else place) - 20)
            return f"{name} differs: {shown(one[start:], 50)!r} whole and {shown(other[start:], 50)!r} streamed"
    cut = whole.finish_reason == "length"
    more = len(streamed.calls) - len(whole.calls)
    if streamed.calls[: len(whole.calls)] != whole.calls or more > int(cut) or more < 0:
        return f"the calls differ: {_calls(whole)} whole and {_calls(streamed)} streamed"
    return ""


def _calls(answer: ChatAnswer) -> str:
    return shown(", ".join(f"{call_id} {arguments!r}" for call_id, _, arguments in answer.calls), 120) or "none"
