"""Masks of a whole batch are those of its rows, and one row's failure is its own."""

from typing import Any

import numpy as np
import pytest
import torch

from constrained_k2 import Compiler, InvalidRequest, SchemaTooCostly, ToolCall, ToolCallMatcher, ToolCallSpec
from constrained_k2.engines.llguidance import matcher as adapter
from constrained_k2.engines.llguidance.engine import LLGuidanceEngine
from constrained_k2.engines.llguidance.matcher import LLGuidanceMatcher
from constrained_k2.prompts import render_tool_calls
from constrained_k2.turn.phases import Phase
from constrained_k2.turn.pipeline import MaskCount, fill_bitmasks
from constrained_k2.vocabulary.bitmask import allocate_bitmask
from constrained_k2.vocabulary.vocabulary import Vocabulary
from tests.turn.test_matcher import BODY

ARGUMENTS = '{"city": "Peking \\" 北京", "days": 12}'


@pytest.fixture(autouse=True)
def threads_for_eight_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "_MIN_THREADED_ROWS", 8)


def at_every_step(compiler: Compiler, **more: Any) -> list[ToolCallMatcher]:
    """A matcher for each position in a turn."""
    vocabulary = compiler.vocabulary
    ids = [*vocabulary.encode("Let me see."), *render_tool_calls([ToolCall("get_weather", 0, ARGUMENTS)], vocabulary)]
    grammar = compiler.compile(ToolCallSpec.from_openai({**BODY, **more}))
    found = []
    for end in range(len(ids) + 1):
        found.append(grammar.matcher())
        assert found[-1].accept_tokens(ids[:end])
    return found


def one_by_one(matchers: list[ToolCallMatcher], size: int) -> Any:
    bitmask = allocate_bitmask(len(matchers), size)
    for row, matcher in enumerate(matchers):
        matcher.fill_bitmask(bitmask, row)
    return bitmask


@pytest.mark.parametrize(
    ("which", "engine", "options"),
    [
        ("small", "llguidance", {"mask_cache_bytes": 0}), ("small", "llguidance", {"mask_cache_bytes": 64 << 20}),
        ("small", "llguidance", {"threads": 1}), ("small", "llguidance", {"threads": 3}),
        pytest.param("small", "xgrammar", {"mask_cache_bytes": 0}, marks=pytest.mark.slow),
        pytest.param("real", "llguidance", {}, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_batch_is_its_rows(which: str, engine: str, options: Any, request: pytest.FixtureRequest) -> None:
    vocabulary: Vocabulary = request.getfixturevalue(f"{which}_vocabulary")
    matchers = at_every_step(Compiler(vocabulary, **options), engine=engine)
    assert sum(matcher.arguments is not None for matcher in matchers) > 8, "the threads are not used"
    expected = one_by_one(at_every_step(Compiler(vocabulary), engine=engine), vocabulary.size)
    assert np.array_equal(one_by_one(matchers, vocabulary.size), expected)
    order = np.random.default_rng(0).permutation(len(matchers)).tolist()
    rows = len(matchers) + 1
    for bitmask in (allocate_bitmask(rows, vocabulary.size), torch.zeros(rows, len(expected[0])).int()):
        bitmask[-1] = 7
        assert not fill_bitmasks([matchers[row] for row in order], bitmask, order)
        assert np.array_equal(np.asarray(bitmask[:-1]), expected)
        assert (np.asarray(bitmask[-1]) == 7).all(), "a row that is not asked for was written"


def test_every_filled_row_is_counted_in_its_phase(small_compiler: Compiler) -> None:
    matchers = at_every_step(small_compiler)
    counts = {phase: MaskCount() for phase in Phase}
    bitmask = allocate_bitmask(len(matchers), small_compiler.vocabulary.size)
    assert not fill_bitmasks(matchers, bitmask, range(len(matchers)), counts)
    for phase in Phase:
        assert counts[phase].rows == sum(matcher.phase is phase for matcher in matchers)
        assert (counts[phase].seconds > 0) == (counts[phase].rows > 0)


@pytest.mark.parametrize("count", [3, 20])
def test_a_row_that_fails_is_named_and_the_others_are_filled(
    small_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    compiler = Compiler(small_vocabulary, mask_cache_bytes=0)
    inside = [matcher for matcher in at_every_step(compiler) if matcher.arguments is not None]
    matchers = [inside[2].fork() for _ in range(count)]
    size = small_vocabulary.size
    expected = one_by_one(matchers, size)
    broken = matchers[1].arguments
    assert isinstance(broken, LLGuidanceMatcher)
    # A matcher that was fed what it does not take is in error for good.
    assert not broken.engine().consume_token(small_vocabulary.encode("}")[0])
    assert broken.engine().is_error()
    monkeypatch.setattr(type(broken), "_rebuild", lambda self: self._go_on("broken"))
    monkeypatch.setattr(broken.grammar.fallbacks, "following", lambda *_, **__: ())
    bitmask = allocate_bitmask(count, size)
    ((row, error),) = fill_bitmasks(matchers, bitmask, range(count))
    assert row == 1
    assert isinstance(error, SchemaTooCostly)
    for row in {*range(count)} - {1}:
        assert np.array_equal(bitmask[row], expected[row])


def test_a_row_whose_lexer_is_full_is_filled_by_a_new_one(small_vocabulary: Vocabulary) -> None:
    compiler = Compiler(small_vocabulary, mask_cache_bytes=0)
    inside = [matcher for matcher in at_every_step(compiler) if matcher.arguments is not None]
    matchers = [inside[2].fork() for _ in range(12)]
    expected = one_by_one(matchers, small_vocabulary.size)
    arguments = matchers[5].arguments
    assert isinstance(arguments, LLGuidanceMatcher)
    assert not arguments.engine().consume_token(small_vocabulary.encode("}")[0])
    bitmask = allocate_bitmask(12, small_vocabulary.size)
    assert not fill_bitmasks(matchers, bitmask, range(12))
    assert np.array_equal(bitmask, expected)


def test_wrong_rows(small_compiler: Compiler) -> None:
    matchers = at_every_step(small_compiler)[:2]
    bitmask = allocate_bitmask(2, small_compiler.vocabulary.size)
    assert fill_bitmasks([], bitmask, []) == []
    for rows, error in (([0], ValueError), ([0, 2], IndexError), ([0, -1], IndexError)):
        with pytest.raises(error):
            fill_bitmasks(matchers, bitmask, rows)
    with pytest.raises(IndexError):
        matchers[0].fill_bitmask(bitmask, -1)
    with pytest.raises(ValueError, match="a bitmask is int32"):
        fill_bitmasks(matchers, bitmask[:, :-1], [0, 1])


@pytest.mark.parametrize(
    ("option", "value"),
    [*(("threads", value) for value in (0, -1, 65, True, 2.0)),
     *(("cache_bytes", value) for value in (0, -1, 1000, 1e9, None))],
)  # fmt: skip
def test_options_that_make_no_sense(small_compiler: Compiler, option: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=option):
        LLGuidanceEngine(small_compiler.vocabulary, value) if option == "threads" else Compiler(
            small_compiler.vocabulary, cache_bytes=value
        )
