"""Is a call that ``max_tokens`` cuts off handed over as one?"""

import json

from constrained_k2.evaluation.doctor.answer import ChatAnswer
from constrained_k2.evaluation.doctor.bodies import UNFIT, chat
from constrained_k2.evaluation.doctor.finding import Finding, ok, shown
from constrained_k2.evaluation.doctor.remedies import constraining
from constrained_k2.evaluation.doctor.target import Target

_BOOK = {"type": "function", "function": {"name": "book_table"}}
_END = 4  # tokens behind which a call is whole: the last brace, the call's end, the section's and the turn's


async def cut_calls(target: Target) -> Finding:
    """A call is asked for, and asked for again with a few tokens too few."""
    body = chat(UNFIT, _BOOK, temperature=0.0, seed=3)
    body |= {"max_tokens": 1024}
    (whole, *_) = await target.chat(body)
    if whole.tokens is None or whole.finish_reason == "length" or not whole.calls:
        return Finding("cannot tell", "no call came whole, so that none could be cut", constraining(target))
    limit = max(1, whole.tokens - _END)
    (cut, *_) = await target.chat(body | {"max_tokens": limit})
    streamed = await target.chat_streamed(body | {"max_tokens": limit})
    for name, answer in (("whole", cut), ("streamed", streamed)):
        if problem := _problem(answer, streamed=name == "streamed"):
            return Finding("fault", f"{name}, after {limit} of {whole.tokens} tokens: {problem}", constraining(target))
    if cut.finish_reason != "length":
        return Finding("cannot tell", f"the answer ended within {limit} tokens this time", "Try again")
    return ok(f"cut after {limit} of {whole.tokens} tokens: finish_reason 'length', no call")


def _problem(answer: ChatAnswer, *, streamed: bool) -> str:
    """What is wrong with an answer that was cut inside a call; empty if nothing is."""
    broken = [arguments for _, _, arguments in answer.calls if not _is_json(arguments)]
    if broken and answer.finish_reason != "length":
        return f"finish_reason {shown(answer.finish_reason)!r} with the arguments {shown(broken[0], 80)!r}"
    if broken and not streamed:
        return f"a call is handed over with the arguments {shown(broken[0], 80)!r}"
    return ""


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
