"""Is a call that ``max_tokens`` cuts off handed over as one?"""

import json
from typing import Any

from constrained_k2.evaluation.chat_answer import ChatAnswer
from constrained_k2.evaluation.doctor.bodies import EAGER, UNFIT, chat
from constrained_k2.evaluation.doctor.finding import Finding, ok, shown
from constrained_k2.evaluation.doctor.prompts import TURN_END
from constrained_k2.evaluation.doctor.remedies import constraining
from constrained_k2.evaluation.doctor.target import Target

_BOOK = {"type": "function", "function": {"name": "book_table"}}
_SEEDS = range(3, 7)
_END = 4  # tokens behind which a call is whole: the last brace, the call's end, the section's and the turn's


async def cut_calls(target: Target) -> Finding:
    """The same calls are asked for twice, the second time with a few tokens too few for the last one of them."""
    cut: list[str] = []
    for name, body, least in (
        ("the call", chat(UNFIT, _BOOK), 1),
        ("the last of several calls", chat(EAGER, "auto"), 2),
    ):
        seeded, tokens = await _with_calls(target, body, least)
        if not tokens:
            continue
        limit = max(1, tokens - _END)
        (whole, *_) = await target.chat(seeded | {"max_tokens": limit})
        streamed = await target.chat_streamed(seeded | {"max_tokens": limit})
        problem = _finish_problem(target, whole, limit) or _whole_problem(whole) or _streamed_problem(streamed)
        if problem:
            seen = f"{name} is cut after {limit} of {tokens} tokens, and {problem}"
            return Finding("fault", seen, constraining(target))
        if whole.finish_reason == "length":
            cut.append(name)
    if not cut:
        return Finding("cannot tell", "no call came twice the same, so that none could be cut", constraining(target))
    return ok(f"{' and '.join(cut)}: cut off, it is not handed over, and finish_reason is 'length'")


async def _with_calls(target: Target, body: dict[str, Any], least: int) -> tuple[dict[str, Any], int]:
    """The request seeded so that calls come, and how many tokens they take; 0 if none do."""
    for seed in _SEEDS:
        seeded = body | {"max_tokens": 1024, "temperature": 1.0, "seed": seed}
        (answer, *_) = await target.chat(seeded)
        if answer.tokens and answer.finish_reason != "length" and len(answer.calls) >= least:
            return seeded, answer.tokens
    return body, 0


def _finish_problem(target: Target, answer: ChatAnswer, limit: int) -> str:
    """Whether an answer that was cut says that it ended; empty if not."""
    ended = answer.token_ids is not None and target.markers and answer.token_ids[-1:] == (target.marker(TURN_END),)
    if answer.tokens is None or answer.tokens < limit or ended or answer.finish_reason == "length":
        return ""
    return f"finish_reason is {shown(answer.finish_reason)!r}"


def _whole_problem(answer: ChatAnswer) -> str:
    """Whether a whole answer holds a piece of a call; empty if not."""
    broken = _broken(answer)
    return f"it is handed over with the arguments {shown(broken[0], 80)!r}" if broken else ""


def _streamed_problem(answer: ChatAnswer) -> str:
    """Whether a stream ends with a piece of a call as if it were one; a stream cannot take back what it has shown."""
    if _broken(answer) and answer.finish_reason != "length":
        return f"the stream ends with finish_reason {shown(answer.finish_reason)!r}"
    return ""


def _broken(answer: ChatAnswer) -> list[str]:
    return [arguments for _, _, arguments in answer.calls if not _is_json(arguments)]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
