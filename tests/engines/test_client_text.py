"""Clients' grammars: no token is forced, special tokens are masked, and the CPU time of a call's steps is limited."""

import gc
from typing import Any

import numpy as np
import pytest

from constrained_k2 import Compiler, SchemaTooCostly, Vocabulary
from constrained_k2.engines.llguidance import client_text
from constrained_k2.engines.llguidance.engine import LLGuidanceEngine
from constrained_k2.engines.llguidance.matcher import LLGuidanceMatcher
from constrained_k2.vocabulary.bitmask import BitmaskRows, allocate_bitmask, allowed_ids
from tests.kit.grammars import mask_of, request_of, takes, text_matcher

LONG = {
    "a custom tool": ("lark", 'start: x~100\nx: y~100\ny: "abc"~100'),
    "a custom tool's regex": ("regex", "(abc){10000}"),
    "an answer that cannot end": ("grammar", 'start: /=+/ "="'),
    "an answer of many parts": ("grammar", 'start: x{100}\nx: y{100}\ny: "abc"{100}'),
    "an answer's regex": ("answer regex", "(abc){10000}"),
}
AMBIGUOUS = 'start: s\ns: s s | "a"'  # for answers, whose grammars are in LLGuidance's dialect


@pytest.fixture(params=["small_compiler", "k3_small_compiler"])
def compiler(request: pytest.FixtureRequest) -> Compiler:
    found: Compiler = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize("name", LONG)
def test_a_forced_text_is_written_in_any_tokens(compiler: Compiler, name: str) -> None:
    """LLGuidance would compute all of the forced text: some texts are infinite, others take minutes."""
    vocabulary, matcher = compiler.vocabulary, text_matcher(compiler, *LONG[name])
    text = "==" if "end" in name else "abcabca"
    if "tool" in name:
        text = "" if vocabulary.format.argument_encoding == "xtml" else '{"input": "abcabca'
    for byte in text:
        (token,) = vocabulary.encode(byte)
        assert token in mask_of(matcher, vocabulary) and matcher.accept(token)
    assert matcher.forced_tokens() == [] and matcher.fork().forced_tokens() == []


@pytest.mark.parametrize("pattern", [{"pattern": "^(ab){300}$"}, {"pattern": "^a*$", "minLength": 5000}])
def test_a_long_pattern_forces_no_tokens(compiler: Compiler, pattern: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"k": {"type": "string", **pattern}}, "required": ["k"]}
    matcher = request_of(compiler, schema).arguments("f")
    assert isinstance(matcher, LLGuidanceMatcher) and matcher.grammar.source.any_tokenization
    assert matcher.forced_tokens() == []


def test_a_grammar_that_excludes_a_text_excludes_special_tokens(compiler: Compiler) -> None:
    vocabulary, matcher = compiler.vocabulary, text_matcher(compiler, "grammar", "start: T\nT: ~/.*a.{3}/")
    for _ in range(3):
        others = {*mask_of(matcher, vocabulary)} & {*vocabulary.unordinary_ids}
        assert others <= {vocabulary.format.engine_stop}
        assert matcher.accept(vocabulary.encode("x")[0])


@pytest.fixture
def slow_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list whose last number is the CPU time, in ns, that each mask takes from now on."""
    clock, costs, fill = [0], [0], LLGuidanceMatcher.fill

    def timed(self: LLGuidanceMatcher, row: Any, address: int = 0) -> None:
        fill(self, row, address)
        clock[0] += costs[-1]

    monkeypatch.setattr(LLGuidanceMatcher, "fill", timed)
    monkeypatch.setattr(client_text, "thread_time_ns", lambda: clock[0])
    return costs


def test_the_step_that_takes_too_long_is_the_last_one(compiler: Compiler, slow_steps: list[int]) -> None:
    vocabulary, row = compiler.vocabulary, allocate_bitmask(1, compiler.vocabulary.size)[0]
    (token,) = vocabulary.encode("a")
    matcher = text_matcher(compiler, "grammar", AMBIGUOUS)
    slow_steps.append(11_000_000)  # a millisecond too long
    for _ in range(70):
        matcher.fill(row)
    slow_steps.append(0)
    for _ in range(100):  # fast steps make up for slow ones
        matcher.fill(row)
    slow_steps.append(1_000_000_000)
    matcher.fill(row)
    assert token in allowed_ids(row)
    for one in (matcher, matcher.fork()):
        for step in (lambda one=one: one.fill(row), lambda one=one: one.accept(token), one.is_complete):
            with pytest.raises(SchemaTooCostly) as refused:
                step()
        assert (refused.value.budget, refused.value.location) == ("mask_ms", "structured_outputs.grammar")
        assert list(one.written()) == []


def test_a_step_that_takes_too_long_ends_no_other_call(compiler: Compiler, slow_steps: list[int]) -> None:
    rows = BitmaskRows(allocate_bitmask(3, compiler.vocabulary.size), compiler.vocabulary.size)
    matchers = [text_matcher(compiler, "grammar", AMBIGUOUS) for _ in range(3)]
    slow_steps.append(1_000_000_000)
    matchers[1].fill(rows[1])
    failed = type(matchers[0]).fill_batch([(one, row) for row, one in enumerate(matchers)], rows)
    assert [row for row, _ in failed] == [1] and isinstance(failed[0][1], SchemaTooCostly)
    assert np.array_equal(rows[0], rows[2]) and rows[0].any()


def test_no_collection_counts_as_a_slow_step(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process with many objects, one garbage collection takes longer than a call's limit."""
    matcher, row = text_matcher(compiler, "grammar", AMBIGUOUS), allocate_bitmask(1, compiler.vocabulary.size)[0]
    fill, thresholds = LLGuidanceMatcher.fill, gc.get_threshold()

    def collections() -> int:
        """The number of collections while many objects are made."""
        before = sum(each["collections"] for each in gc.get_stats())
        assert len([[] for _ in range(5000)]) == 5000
        return sum(each["collections"] for each in gc.get_stats()) - before

    def allocating(self: LLGuidanceMatcher, row: Any, address: int = 0) -> None:
        assert not collections()
        fill(self, row, address)

    monkeypatch.setattr(LLGuidanceMatcher, "fill", allocating)
    gc.set_threshold(100, 1, 1)
    try:
        matcher.fill(row)
        assert gc.isenabled() and collections()
    finally:
        gc.set_threshold(*thresholds)


def test_replayed_tokens_count(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    (token,) = compiler.vocabulary.encode("a")
    matcher = text_matcher(compiler, "grammar", AMBIGUOUS)
    for _ in range(20):
        assert matcher.accept(token)
    matcher._inner._forget_engine()
    steps = iter([0, 0, 1, 2, 1 << 40])  # begin, its check, and two tokens within the time
    monkeypatch.setattr(client_text, "thread_time_ns", lambda: next(steps, 1 << 41))
    with pytest.raises(SchemaTooCostly):
        matcher.is_complete()
    monkeypatch.undo()
    assert len(matcher.written()) == 20 and matcher._inner._consumed == 0


def test_a_first_mask_that_takes_too_long_is_refused(slow_steps: list[int]) -> None:
    engine = LLGuidanceEngine(Vocabulary.of_bytes(), threads=1)
    engine.compile_text("lark", 'start: "a"', "json")
    slow_steps.append(1_000_000_000)
    with pytest.raises(SchemaTooCostly):
        engine.compile_text("lark", 'start: "b"', "json")


@pytest.mark.slow
def test_long_strings_are_counted_in_parts(small_compiler: Compiler) -> None:
    """A terminal with a count this large reaches a limit of LLGuidance's lexer."""
    bounds = ((1, 16_385), (1024, 17_408), (1030, 17_409), (17_000, 17_001), (18_432, 18_432), (17_000, None))
    for least, most in bounds:
        sizes = {"minLength": least} | ({} if most is None else {"maxLength": most})
        schema = {"type": "object", "properties": {"k": {"type": "string", **sizes}}, "required": ["k"]}
        matcher = request_of(small_compiler, schema).arguments("f")
        for length in {least - 1, least, *([] if most is None else [most, most + 1])}:
            text = "é" * (length // 2) + "x" * (length - length // 2)
            is_taken = takes(matcher.fork(), small_compiler.vocabulary.encode(f'{{"k": "{text}"}}'))
            assert is_taken == (least <= length and (most is None or length <= most)), (least, most, length)
