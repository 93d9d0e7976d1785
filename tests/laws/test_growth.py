"""A token takes the same memory and time at the end of a long call as near its beginning, whatever makes it long."""

import gc
import statistics
import tracemalloc
from collections.abc import Callable
from itertools import chain
from time import thread_time_ns
from typing import Any

import pytest

from constrained_k2 import Compiler, ToolCallMatcher, Vocabulary, allocate_bitmask
from tests.kit.grammars import request_of
from tests.kit.turns import call, call_start, opening

TOKENS, WINDOW = 20_000, 1000
TRACED = 6000  # tokens whose memory is traced, which takes some ten times as long
STRING: dict[str, Any] = {"type": "string"}
STRINGS: dict[str, Any] = {"type": "array", "items": STRING}
UNEQUAL = STRINGS | {"uniqueItems": True}


def words(number: int) -> str:
    return f"The quick brown fox jumps over {number} dogs; "


FAST = {"string", "key", "unequal items"}  # the others are for the default level
Kind = tuple[dict[str, Any], str, Callable[[int], str]]
KINDS: dict[str, Kind] = {
    "string": ({"a": STRING}, '{"a":"', words),
    "string of anything": ({}, '{"a":"', words),
    "string with a pattern": ({"a": STRING | {"pattern": "^T"}}, '{"a":"T', words),
    "string with a length": ({"a": STRING | {"minLength": 1}}, '{"a":"', words),
    "item": ({"a": STRINGS}, '{"a":["', words),
    "unequal item": ({"a": UNEQUAL}, '{"a":["', words),
    "unequal item with a pattern": ({"a": UNEQUAL | {"items": STRING | {"pattern": "^T"}}}, '{"a":["T', words),
    "key": ({}, '{"a":1,"', words),
    "items": ({"a": STRINGS}, '{"a":["x"', ',"{}"'.format),
    "unequal items": ({"a": UNEQUAL}, '{"a":["x"', ',"{}"'.format),
    "unequal numbers": ({"a": UNEQUAL | {"items": {"type": "integer"}}}, '{"a":[1', lambda number: f",{number + 2}"),
    "numbers": ({}, '{"a":[1', ",{}".format),
    "members": ({}, '{"a":1', ',"{}":1'.format),
    "objects": ({}, '{"a":[{}', lambda number: f',{{"a":{number}}}'),
}


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    return Compiler(Vocabulary.of_bytes())


def begin(compiler: Compiler, properties: dict[str, Any], begun: str = "") -> ToolCallMatcher:
    """A matcher of a turn, in the arguments of its first call; without these, before its first call."""
    schema = {"type": "object", "properties": properties, "additionalProperties": True}
    matcher, vocabulary = request_of(compiler, schema).matcher(), compiler.vocabulary
    assert matcher.accept_tokens([*call_start(vocabulary), *begun.encode()] if begun else opening(vocabulary))
    return matcher


def write(matcher: ToolCallMatcher, tokens: list[int]) -> list[int]:
    """Write tokens, each behind a mask; return the nanoseconds that each takes."""
    row, costs = allocate_bitmask(1, matcher.vocabulary.size), []
    for token in tokens:
        begun = thread_time_ns()
        matcher.fill_bitmask(row)
        assert matcher.accept_tokens([token])
        costs.append(thread_time_ns() - begun)
    return costs


def check_memory(matcher: ToolCallMatcher, tokens: list[int]) -> None:
    """The second half of the tokens takes no more memory than the first."""
    held, half = [0], len(tokens) // 2
    tracemalloc.start()
    for part in (tokens[:half], tokens[half:]):
        write(matcher, part)
        gc.collect()
        held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    first, second = held[1], held[2] - held[1]
    assert second < 1.5 * first + (1 << 20), f"{first >> 10} KiB for the first half, {second >> 10} for the second"


def begun_as(name: str, compiler: Compiler, count: int) -> tuple[ToolCallMatcher, list[int]]:
    """A matcher in the arguments of a kind, and some tokens that go on."""
    properties, begun, piece = KINDS[name]
    text = "".join(map(piece, range(count // len(piece(100)) + 1)))
    return begin(compiler, properties, begun), list(text.encode())


by_kind = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in KINDS]
)


@pytest.mark.slow
@by_kind
def test_memory_of_a_token(name: str, compiler: Compiler) -> None:
    check_memory(*begun_as(name, compiler, TRACED))


@by_kind
def test_time_of_a_token(name: str, compiler: Compiler) -> None:
    """Medians over windows of one run, which share what the machine does meanwhile; quadratic costs are tenfold."""
    costs = write(*begun_as(name, compiler, TOKENS))
    early, late = (statistics.median(costs[start : start + WINDOW]) for start in (WINDOW, len(costs) - WINDOW))
    assert late < 4 * early, f"{early / 1000:.1f} us near the beginning, {late / 1000:.1f} us at the end"


@pytest.mark.slow
def test_memory_of_calls_and_of_depth(compiler: Compiler) -> None:
    calls = (call(compiler.vocabulary, {"a": number}, index=number) for number in range(200))
    check_memory(begin(compiler, {}), list(chain.from_iterable(calls)))
    check_memory(begin(compiler, {}, '{"a":'), list(b"[" * 3000))
