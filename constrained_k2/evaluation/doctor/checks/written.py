"""Checks whether calls are returned as the model wrote them, by comparison with the sampled tokens."""

from itertools import zip_longest

from constrained_k2.errors import InvalidRequest
from constrained_k2.evaluation.client import NotServed
from constrained_k2.evaluation.doctor.findings import Finding, fault, ok
from constrained_k2.evaluation.doctor.prompt import Prompt, between
from constrained_k2.evaluation.doctor.requests import EAGER, chat
from constrained_k2.evaluation.doctor.target import Target
from constrained_k2.explain.view import printable
from constrained_k2.formats.kimi_k2 import ARGUMENT_BEGIN, CALL_BEGIN, CALL_END
from constrained_k2.formats.kimi_k3 import KIMI_K3, SEPARATOR
from constrained_k2.parsing import parse_completion
from constrained_k2.prompts.xtml.arguments import split_arguments
from constrained_k2.vocabulary.vocabulary import Vocabulary

_SAMPLES = 4
_BYTES = Vocabulary.of_bytes(KIMI_K3)
_SPECIAL = _BYTES.special_tokens
Parts = tuple[str, ...]  # of a call: arguments and id; or its name and each argument


async def exact_arguments(target: Target) -> Finding:
    """Calls are returned as sampled, by comparison with the sampled tokens."""
    compared = 0
    for seed in range(_SAMPLES):
        body = target.brief | chat(EAGER, max_tokens=1024, temperature=1.0, seed=seed)
        (answer, *_) = await target.chat(body)
        if answer.token_ids is None:
            raise NotServed("return_token_ids is not served, so the sampled text cannot be compared")
        pieces = await target.pieces(answer.token_ids)
        written = _written_in_tags(pieces) if target.uses_tags else _written(pieces)
        if not written and answer.calls and answer.finish_reason != "length":
            if target.uses_tags and any(SEPARATOR in piece.text for piece in pieces if not piece.special):
                seen = "text that spells tags in ordinary tokens is returned as a call"
                return fault(seen, f"Parse by token id: {target.parsing}")
            return Finding("cannot tell", "calls are not written in Kimi's format here", target.constraining)
        for call, parts in zip(answer.calls, written, strict=False):
            returned = _named(call[1], call[2]) if target.uses_tags else (call[2], call[0])
            for was, became in zip_longest(parts, returned, fillvalue="nothing"):
                if was != became:
                    shown = (repr(printable(text, 70)) for text in (was, became))
                    return fault("the model wrote {}, returned is {}".format(*shown), target.parsing)
            compared += 1
        if answer.finish_reason != "length" and len(answer.calls) != len(written):
            seen = f"the model wrote {len(written)} calls, returned are {len(answer.calls)}"
            return fault(seen, target.parsing)
    if not compared:
        return Finding("cannot tell", f"no call came in {_SAMPLES} answers", target.constraining)
    return ok(f"{compared} calls are returned as they were written, to the character")


def _written(pieces: Prompt) -> list[Parts]:
    """The arguments and the id of each call, as sampled."""
    texts, ids = between(pieces, ARGUMENT_BEGIN, CALL_END), between(pieces, CALL_BEGIN, ARGUMENT_BEGIN)
    return list(zip(texts, ids, strict=False))


def _written_in_tags(pieces: Prompt) -> list[Parts]:
    """The name and each argument of each complete call, as sampled; other special tokens than markers are text."""
    ids = [
        token
        for piece in pieces
        for token in ([_SPECIAL[piece.text]] if piece.special and piece.text in _SPECIAL else piece.text.encode())
    ]
    return [_named(call.name, call.arguments) for call in parse_completion(ids, _BYTES).tool_calls]


def _named(name: str, text: str) -> Parts:
    """The name and each argument of a call whose arguments are one text."""
    try:
        members = split_arguments(text, "arguments")
    except InvalidRequest:  # nested too deeply
        members = text
    return (name, text) if isinstance(members, str) else (name, *(_in_line(*member) for member in members))


def _in_line(key: str, kind: str, value: str) -> str:
    """One argument in one line; blanks around JSON are left out."""
    return f"{key} ({kind}): {value if kind == 'string' else value.strip()}"
