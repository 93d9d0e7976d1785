"""Turns of either format: their tokens, the matchers of requests, and random choices under the masks."""

import json
import random
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from constrained_k2 import Compiler, ToolCallMatcher, ToolCallSpec, Vocabulary
from constrained_k2.turn.phases import Phase
from constrained_k2.turn.pipeline import fill_bitmasks
from constrained_k2.vocabulary.bitmask import allocate_bitmask, allowed_ids
from tests.kit.walks import row_of
from tests.kit.xtml import encode, pieces

MARKERS = frozenset({"section_begin", "section_end", "call_begin", "argument_begin", "call_end", "think_begin", "think_end",
                     "turn_end"})  # fmt: skip
"""The names of a format's markers."""


def is_k3(vocabulary: Vocabulary) -> bool:
    """Return True if the vocabulary's format is Kimi K3's."""
    return vocabulary.format.argument_encoding == "xtml"


@cache
def _splitter(texts: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(f"({'|'.join(map(re.escape, sorted(texts, key=len, reverse=True)))})")


def ids_of(vocabulary: Vocabulary, *parts: str) -> list[int]:
    """Return the tokens of texts.

    A part is the name of a marker, or a text: the texts of special tokens in it become those tokens, ``<~|...|>`` is
    a special token spelled in ordinary ones, and the text between two special tokens is encoded at once.
    """
    ids: list[int] = []
    for part in parts:
        if part in MARKERS:
            ids.append(getattr(vocabulary.format, part))
            continue
        for piece in _splitter(tuple(vocabulary.special_tokens)).split(part):
            known = vocabulary.special_tokens.get(piece)
            ids += vocabulary.encode(piece.replace("<~|", "<|")) if known is None else [known]
    return ids


def opening(vocabulary: Vocabulary) -> list[int]:
    """Return the tokens of a turn without text, up to its first call."""
    text = "<|close|>response<|sep|><|open|>tools<|sep|>" if is_k3(vocabulary) else "section_begin"
    return ids_of(vocabulary, text)


def header(vocabulary: Vocabulary, name: str = "f", index: int = 0) -> list[int]:
    """Return the tokens of a call, up to its arguments. The index counts from 0 in either format."""
    if is_k3(vocabulary):
        return ids_of(vocabulary, f'<|open|>call tool="{name}" index="{index + 1}"<|sep|>')
    return ids_of(vocabulary, "call_begin", f"functions.{name}:{index}", "argument_begin")


def call_start(vocabulary: Vocabulary, name: str = "f") -> list[int]:
    """Return the tokens of a turn without text, up to the arguments of its first call."""
    return opening(vocabulary) + header(vocabulary, name)


def arguments(vocabulary: Vocabulary, value: dict[str, Any]) -> list[int]:
    """Return the tokens of a call's arguments."""
    if is_k3(vocabulary):
        return encode(vocabulary, pieces(value))
    return vocabulary.encode(json.dumps(value, ensure_ascii=False))


def begun_call(vocabulary: Vocabulary, value: dict[str, Any], name: str = "f", index: int = 0) -> list[int]:
    """Return the tokens of a call, up to the end of its arguments."""
    return header(vocabulary, name, index) + arguments(vocabulary, value)


def call_end(vocabulary: Vocabulary) -> list[int]:
    """Return the tokens that end a call."""
    return ids_of(vocabulary, "<|close|>call<|sep|>" if is_k3(vocabulary) else "call_end")


def call(vocabulary: Vocabulary, value: dict[str, Any], name: str = "f", index: int = 0) -> list[int]:
    """Return the tokens of a whole call."""
    return begun_call(vocabulary, value, name, index) + call_end(vocabulary)


def section_end(vocabulary: Vocabulary) -> list[int]:
    """Return the tokens that end the section of calls."""
    return ids_of(vocabulary, "<|close|>tools<|sep|>" if is_k3(vocabulary) else "section_end")


def turn_end(vocabulary: Vocabulary) -> list[int]:
    """Return the tokens that end a turn behind its calls."""
    return ids_of(vocabulary, *(["<|close|>message<|sep|>"] if is_k3(vocabulary) else []), "turn_end")


def matcher_of(compiler: Compiler, body: Any = None, *, in_reasoning: bool = False, **fields: Any) -> ToolCallMatcher:
    """Return a matcher of a request."""
    return compiler.compile(ToolCallSpec.from_openai((body or {}) | fields)).matcher(in_reasoning=in_reasoning)


Preference = Callable[[npt.NDArray[Any]], Sequence[int] | npt.NDArray[Any]]
"""For :func:`steps`: the tokens to choose from, of those that are allowed."""


def towards_the_end(vocabulary: Vocabulary, chance: random.Random, share: float = 0.25) -> Preference:
    """Prefer, in this share of the steps, special tokens, or if there is none what ends a JSON value."""
    raw = [vocabulary.ordinary_bytes(token) for token in range(vocabulary.size)]
    ends = [np.array([each.startswith(start) for each in raw]) for start in ((), (b'"', b"}", b"]"))]
    ends[0][[*vocabulary.special_tokens.values()]] = True

    def prefer(allowed: npt.NDArray[Any]) -> npt.NDArray[Any]:
        for is_end in ends if chance.random() < share else ():
            if len(found := allowed[is_end[allowed]]):
                return found
        return allowed

    return prefer


def towards_calls(matcher: ToolCallMatcher) -> Preference:
    """Prefer another call to the end of the calls."""
    call_begin = matcher.vocabulary.format.call_begin
    return lambda allowed: [call_begin] if matcher.phase is Phase.BETWEEN and call_begin in allowed else allowed


def steps(
    matcher: ToolCallMatcher, chance: random.Random, limit: int = 20_000, prefer: Preference | None = None
) -> list[int]:
    """Accept tokens chosen uniformly from what ``prefer`` leaves of the mask, until the turn ends or after ``limit``."""
    ids: list[int] = []
    while len(ids) < limit and not matcher.is_terminated():
        allowed = allowed_ids(row_of(matcher))
        assert len(allowed), f"nothing is allowed after {matcher.vocabulary.decode(matcher.token_ids())!r}"
        choices = prefer(allowed) if prefer else allowed
        ids.append(int(choices[chance.randrange(len(choices))]))
        assert matcher.accept_tokens(ids[-1:]), f"{ids[-1]} is in the mask but is refused"
    return ids


def state_of(matcher: ToolCallMatcher) -> tuple[Any, ...]:
    """Return what may not differ between two matchers that accepted the same tokens; the mask comes first."""
    row = row_of(matcher).tobytes()
    return row, matcher.phase, matcher.num_tokens, matcher.num_calls, matcher.has_declined, matcher.is_terminated()


def check_states(make: Callable[[], ToolCallMatcher], ids: list[int], chance: random.Random, apart: int = 1) -> None:
    """Check a turn's state before every ``apart``-th token.

    It is that of a fresh matcher; also after a rollback, in a fork and in a batch, and after refused tokens.
    """
    matcher, states, forks = make(), dict[int, tuple[Any, ...]](), dict[int, ToolCallMatcher]()
    for at, token in enumerate(ids):
        if at % apart == 0:
            states[at], forks[at] = state_of(matcher), matcher.fork()
            assert not matcher.accept_tokens([*ids[at : at + 7], matcher.vocabulary.size])
            assert matcher.validate_tokens([*ids[at:], -1]) == ids[at:]
            assert state_of(matcher) == states[at]
        assert matcher.accept_tokens([token])
    batch = allocate_bitmask(len(forks), matcher.vocabulary.size)
    assert not fill_bitmasks([*forks.values()], batch, range(len(forks)))
    for row, (at, fork) in zip(batch, forks.items(), strict=True):
        fresh = make()
        assert fresh.accept_tokens(ids[:at])
        assert state_of(fresh) == state_of(fork) == states[at] and row.tobytes() == states[at][0]
        assert fork.accept_tokens(ids[at:])
        fork.rollback(len(ids) - at)
        assert state_of(fork) == states[at]
        fork.rollback(at)
        assert state_of(fork) == states[0]
    for _ in range(30):
        at = chance.choice([*states])
        matcher.rollback(matcher.num_tokens - at)
        assert state_of(matcher) == states[at], f"after a rollback to {at}"
        assert matcher.accept_tokens(ids[at : chance.randrange(at, len(ids)) + 1])
        assert matcher.accept_tokens(ids[matcher.num_tokens :])
    for at in reversed(states):
        matcher.rollback(matcher.num_tokens - at)
        assert state_of(matcher) == states[at]
    assert matcher.accept_tokens(ids)
    matcher.reset()
    assert state_of(matcher) == states[0]
