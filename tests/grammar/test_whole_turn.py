"""Whole-turn grammars against the split matcher: the same turns, token by token (law 6)."""

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import llguidance
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from constrained_k2 import (
    Compiler,
    ToolCall,
    ToolCallMatcher,
    ToolCallSpec,
    Vocabulary,
    build_grammar,
    parse_completion,
    render_tool_calls,
)
from constrained_k2.formats.kimi_k3 import KIMI_K3
from constrained_k2.prompts.xtml.turn import render_turn
from constrained_k2.turn.phases import Phase
from constrained_k2.vocabulary.bitmask import TokenSet, allocate_bitmask, allowed_ids
from tests.grammar.whole_turns import (
    ALL,
    BYTES,
    CASES,
    IDS,
    K3_BYTES,
    K3_CASES,
    K3_IDS,
    LarkOracle,
    TagOracle,
    bytes_of,
    in_reasoning,
    refused_at,
    spec_of,
    transcript_ids,
    transcripts,
    verdict,
)
from tests.kit.budget import tries
from tests.kit.data import mcp_servers
from tests.kit.k3_turns import read
from tests.kit.tools import tool
from tests.kit.walks import row_of, walk


def allowed(matcher: ToolCallMatcher) -> npt.NDArray[np.bool_]:
    bits = np.unpackbits(row_of(matcher).view(np.uint8), bitorder="little")
    return bits[: matcher.vocabulary.size].astype(bool)


def assert_masks_agree(
    matcher: ToolCallMatcher, oracle: LarkOracle, forcing: LarkOracle, vocabulary: Vocabulary
) -> None:
    """The same tokens between markers, in call ids and in arguments; in text all but the documented differences.

    LLGuidance allows only the canonical token if text is forced: our matchers do so only in JSON.
    """
    ours = allowed(matcher)
    is_json = vocabulary.format.argument_encoding == "json"
    forces = matcher.phase is Phase.ANSWER or (matcher.phase is Phase.ARGUMENTS and is_json)
    theirs = (forcing if forces else oracle).mask()
    differ = {int(token) for token in np.nonzero(ours != theirs)[0]}
    if matcher.phase in (Phase.START, Phase.REASONING, Phase.TEXT):
        for token in differ:  # ours: any bytes are text
            assert ours[token], vocabulary.token_bytes(token)
            raw = vocabulary.ordinary_bytes(token)
            assert not raw or not _is_utf8_beginning(raw), raw
    elif matcher.phase is Phase.ARGUMENTS and not is_json:
        for token in differ:  # it would write a key a second time
            assert theirs[token], vocabulary.token_bytes(token)
            assert b'"' in vocabulary.ordinary_bytes(token), vocabulary.token_bytes(token)
    else:
        assert not differ, (matcher.phase, [vocabulary.token_bytes(token) for token in differ])


def _is_utf8_beginning(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return error.end == len(raw) and error.reason == "unexpected end of data"
    return True


class Both:
    """A whole-turn grammar and the split matcher side by side, under the mask of either one."""

    def __init__(self, matcher: ToolCallMatcher, text: str, vocabulary: Vocabulary, drawn_from: str) -> None:
        self.matcher, self.vocabulary = matcher, vocabulary
        self.oracle = LarkOracle(text, vocabulary)
        self.forcing = LarkOracle(text, vocabulary, forcing=True)
        self.drawn_from = drawn_from
        self.ids: list[int] = []

    @property
    def phase(self) -> Phase:
        return self.matcher.phase

    def fill_bitmask(self, bitmask: Any, row: int = 0) -> None:
        assert_masks_agree(self.matcher, self.oracle, self.forcing, self.vocabulary)
        if self.drawn_from == "split":
            self.matcher.fill_bitmask(bitmask, row)
        else:
            bits = np.zeros(bitmask.shape[1] * 32, bool)
            bits[: self.vocabulary.size] = self.oracle.mask() & allowed(self.matcher)
            bitmask[row] = np.packbits(bits, bitorder="little").view(np.int32)

    def accept_tokens(self, ids: list[int]) -> bool:
        taken = self.matcher.accept_tokens(ids)
        for oracle in (self.oracle, self.forcing):
            assert taken == oracle.accept_all(ids), self.vocabulary.decode([*self.ids, *ids])
        self.ids += ids if taken else []
        return taken

    def is_terminated(self) -> bool:
        return self.matcher.is_terminated()


PRELUDES = {
    "auto": ["Let me see. <|tool_calls_section_begin|>", "<|tool_calls_section_begin|>", "北京 is sunny.<|im_end|>"],
    "required": ["<|tool_calls_section_begin|>"],
    "none": ["Hello.<|im_end|>"],
}


def first_byte(schema: str) -> str:
    return "[" if json.loads(schema).get("type") == "array" else "{"


@pytest.mark.parametrize("drawn_from", ["split", "lark"])
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_turns_drawn_under_one_mask_are_accepted_by_the_other_and_masks_agree(
    case: Path, drawn_from: str, small_compiler: Compiler
) -> None:
    """After a prelude up to the section: a uniform choice in free text would hardly ever begin one."""
    vocabulary, spec = small_compiler.vocabulary, spec_of(case)
    text = (case / "grammar.lark").read_text(encoding="utf-8")
    compiled = small_compiler.compile(spec)
    preludes = PRELUDES[spec.choice]
    if spec.answer is not None:
        preludes = [first_byte(spec.answer.text), "<|tool_calls_section_begin|>"]
        preludes = preludes[:1] if spec.max_calls == 0 else preludes
    if spec.thinking:
        preludes = [*preludes, *(f"<think>So: </think>{prelude}" for prelude in preludes)]
        preludes.append("<think>So: <|tool_calls_section_begin|>")
    for seed, prelude in enumerate(preludes * 2):
        both = Both(compiled.matcher(), text, vocabulary, drawn_from)
        for token in transcript_ids(prelude, vocabulary):
            both.fill_bitmask(allocate_bitmask(1, vocabulary.size))
            assert both.accept_tokens([token]), prelude
        schemas = [tool.parameters for tool in spec.tools]
        schemas += [] if spec.answer is None else [json.loads(spec.answer.text)]
        walk(both, vocabulary, seed, schemas)  # type: ignore[arg-type]
        assert both.oracle.matcher.is_stopped()


def row_with(vocabulary: Vocabulary, ids: Iterable[int]) -> npt.NDArray[np.int32]:
    row = allocate_bitmask(1, vocabulary.size)[0]
    TokenSet(ids, vocabulary.size).fill(row)
    return row


def k3_walk(both: Both, seed: int, limit: int = 5000) -> list[int]:
    """Take allowed tokens at random until a stop, with a preference for markers and for what ends names and JSON."""
    vocabulary, chance = both.vocabulary, random.Random(seed)
    bitmask = allocate_bitmask(1, vocabulary.size)
    ordinary = [(token, vocabulary.ordinary_bytes(token)) for token in range(vocabulary.size)]
    markers = row_with(vocabulary, vocabulary.special_tokens.values())
    ending = row_with(vocabulary, (token for token, raw in ordinary if raw[:1] in {b'"', b"]", b"}"}))
    ascii_text = row_with(vocabulary, (token for token, raw in ordinary if raw.isascii()))
    ids: list[int] = []
    while not both.is_terminated():
        assert len(ids) < limit, vocabulary.decode(ids[-100:])
        both.fill_bitmask(bitmask)
        row = bitmask[0]
        if both.phase in (Phase.START, Phase.REASONING, Phase.TEXT):
            row &= ascii_text | markers  # whole characters: see assert_masks_agree
        draw = chance.random()
        preferred = row & (markers if draw < 0.3 else ending) if draw < 0.7 else row
        allowed = allowed_ids(preferred if preferred.any() else row)
        assert len(allowed), vocabulary.decode(ids)
        ids.append(int(allowed[chance.randrange(len(allowed))]))
        assert both.accept_tokens(ids[-1:])
    return ids


@pytest.mark.parametrize("drawn_from", ["split", "lark"])
@pytest.mark.parametrize("case", K3_CASES, ids=K3_IDS)
def test_turns_of_kimi_k3_drawn_under_one_mask_are_accepted_by_the_other_and_masks_agree(
    case: Path, drawn_from: str, k3_small_compiler: Compiler
) -> None:
    vocabulary, spec = k3_small_compiler.vocabulary, spec_of(case)
    text = (case / "grammar.lark").read_text(encoding="utf-8")
    compiled = k3_small_compiler.compile(spec)
    calls = 0
    for seed in range(8):
        matcher = compiled.matcher(in_reasoning=in_reasoning(case))
        both = Both(matcher, text, vocabulary, drawn_from)
        ids = k3_walk(both, seed)
        assert both.oracle.matcher.is_stopped()
        turn = read(ids, vocabulary, in_reasoning=in_reasoning(case))
        assert [index for _, index, _ in turn.calls] == list(range(1, len(turn.calls) + 1))
        calls += len(turn.calls)
    assert bool(calls) is (spec.max_calls != 0)


@pytest.mark.slow
@pytest.mark.parametrize("first_server", range(7))
@pytest.mark.parametrize("which", ["real_compiler", "k3_real_compiler"])
def test_public_tools_on_the_real_vocabulary(which: str, first_server: int, request: pytest.FixtureRequest) -> None:
    compiler: Compiler = request.getfixturevalue(which)
    vocabulary = compiler.vocabulary
    markers: Any = {"markers": KIMI_K3} if which.startswith("k3") else {}
    for number, tools in enumerate(mcp_servers()[first_server::7]):
        spec = ToolCallSpec.from_openai({"tools": tools, "tool_choice": "required"})
        matcher = compiler.compile(spec).matcher()
        both = Both(matcher, build_grammar(spec, **markers), vocabulary, ("split", "lark")[number % 2])
        if markers:
            assert read(k3_walk(both, number), vocabulary, in_reasoning=False).calls
        else:
            ids = walk(both, vocabulary, number, [tool.parameters for tool in spec.tools])  # type: ignore[arg-type]
            assert parse_completion(ids, vocabulary).tool_calls
        assert both.oracle.matcher.is_stopped()


_ROWS = [(case, row["text"]) for case in ALL for row in transcripts(case)]
_COMPILED = {case: Compiler(bytes_of(case)).compile(spec_of(case)) for case in ALL}
_ALPHABET = b'functions.:0129"{}[], ab\\='


@given(st.sampled_from(_ROWS), st.randoms(use_true_random=False), st.integers(1, 3))
@settings(max_examples=tries(100, everything=300), deadline=None)
def test_damaged_transcripts_are_refused_at_the_same_token(
    row: tuple[Path, str], chance: random.Random, damages: int
) -> None:
    case, text = row
    vocabulary = bytes_of(case)
    ids = transcript_ids(text, vocabulary)
    alphabet = [*_ALPHABET, *vocabulary.special_tokens.values()]
    for _ in range(damages):
        location = chance.randrange(len(ids) + 1)
        cut = location + chance.choice([0, 1, 1, 5])
        ids[location:cut] = chance.choice([[], [chance.choice(alphabet)], ids[location:cut] * 2])
    matcher = _COMPILED[case].matcher(in_reasoning=in_reasoning(case))
    oracle = LarkOracle((case / "grammar.lark").read_text(encoding="utf-8"), vocabulary)
    assert refused_at(matcher, ids) == verdict(oracle.accept, ids), vocabulary.decode(ids)


def write(compiler: Compiler, spec: ToolCallSpec, calls: list[ToolCall], **more: Any) -> tuple[int | None, int | None]:
    """Return the token at which the split matcher and the whole-turn grammar refuse these calls."""
    vocabulary = compiler.vocabulary
    ids = [*render_tool_calls(calls, vocabulary), vocabulary.format.turn_end]
    matcher = compiler.compile(spec).matcher(**more)
    oracle = LarkOracle(build_grammar(spec, **more), vocabulary)
    return refused_at(matcher, ids), verdict(oracle.accept, ids)


@pytest.mark.parametrize("first", [0, 7, 95, 990, 9_000, 999_999_990])
def test_indexes_count_up_across_every_carry(first: int) -> None:
    spec = ToolCallSpec.from_openai({"tools": [tool("f")], "first_index": first})
    calls = [ToolCall("f", first + number, "{}") for number in range(120)]
    assert write(Compiler(BYTES), spec, calls) == (None, None)
    for wrong in (calls[50].index + 1, calls[50].index - 1, calls[50].index % 10):
        damaged = [*calls[:50], ToolCall("f", wrong, "{}"), *calls[51:]]
        ours, theirs = write(Compiler(BYTES), spec, damaged)
        assert ours == theirs is not None


def test_indexes_of_kimi_k3_count_up_across_every_carry() -> None:
    """In every turn from 1, though seven calls precede it."""
    spec = ToolCallSpec.from_openai({"tools": [tool("f")], "first_index": 7})
    compiled = Compiler(K3_BYTES).compile(spec)
    text = build_grammar(spec, markers=KIMI_K3)
    calls = [ToolCall("f", 0, "{}")] * 120
    due = 1

    def refused(ids: list[int]) -> tuple[int | None, int | None]:
        matcher, oracle = compiled.matcher(), LarkOracle(text, K3_BYTES)
        return refused_at(matcher, ids), verdict(oracle.accept, ids)

    assert refused(render_turn(calls, K3_BYTES, first_index=due)) == (None, None)
    for first in {0, 1, 2, 7, 8, 10} - {due}:
        ours, theirs = refused(render_turn(calls[:1], K3_BYTES, first_index=first))
        assert ours == theirs is not None


@pytest.mark.slow
def test_the_digits_of_an_index_bound_a_turn() -> None:
    """The only limit that the grammar has and the matcher does not; LLGuidance's default limits are lower."""
    spec = ToolCallSpec.from_openai({"tools": [tool("f")], "first_index": 0})
    limits = llguidance.LLParserLimits(max_items_in_row=20_000, step_max_items=200_000)
    oracle = LarkOracle(build_grammar(spec), BYTES, limits=limits)
    *ids, section_end = render_tool_calls([ToolCall("f", number, "{}") for number in range(1000)], BYTES)
    assert oracle.accept_all(ids)
    assert np.nonzero(oracle.mask())[0].tolist() == [section_end]


@pytest.mark.slow
def test_llguidances_default_limits_allow_hundreds_of_calls() -> None:
    spec = ToolCallSpec.from_openai({"tools": [tool("f")], "first_index": 0})
    calls = [ToolCall("f", number, "{}") for number in range(400)]
    assert write(Compiler(BYTES), spec, calls) == (None, None)


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["auto", "required", "none"])
def test_a_prompt_that_ends_in_the_reasoning(choice: str) -> None:
    spec = ToolCallSpec.from_openai({"tools": [tool("f")], "tool_choice": choice})
    texts = ["a</think>Hi<|im_end|>", "a<|im_end|>", "</think><think>", "a</think><|tool_calls_section_begin|>"]
    texts += ["<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0", "<think>", "", "</think><|im_end|>"]
    for text in texts:
        ids = transcript_ids(text, BYTES)
        matcher = Compiler(BYTES).compile(spec).matcher(in_reasoning=True)
        oracle = LarkOracle(build_grammar(spec, in_reasoning=True), BYTES)
        tag = TagOracle(build_grammar(spec, "xgrammar", markers=BYTES.format, in_reasoning=True), BYTES)
        assert verdict(oracle.accept, ids) == verdict(tag.accept, ids) == refused_at(matcher, ids), text


@pytest.mark.slow
def test_to_ebnf_a_call_out_of_ordinary_tokens_is_a_call() -> None:
    spec = ToolCallSpec.from_openai({"tools": [tool("f")], "tool_choice": "required"})
    call = "".join(map(BYTES.decode, [render_tool_calls([ToolCall("f", 0, "{}")], BYTES)]))
    ids = BYTES.encode(call)
    assert verdict(TagOracle(build_grammar(spec, "xgrammar", "ebnf"), BYTES, ebnf=True).accept, ids) is None
    assert verdict(TagOracle(build_grammar(spec, "xgrammar", markers=BYTES.format), BYTES).accept, ids) == 0
    assert verdict(LarkOracle(build_grammar(spec), BYTES).accept, ids) == 0
