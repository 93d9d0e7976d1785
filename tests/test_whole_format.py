"""Whole-format grammars against the split matcher: the same turns, token by token (law 6)."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from constrained_k2 import (
    Compiler,
    InvalidRequest,
    StrictPolicy,
    ToolCall,
    ToolCallMatcher,
    ToolCallSpec,
    UnsupportedSchema,
    Vocabulary,
    build_grammar,
    parse_completion,
    render_tool_calls,
)
from constrained_k2.bitmask import allocate_bitmask
from constrained_k2.cli import main
from constrained_k2.format import MARKER_TEXTS
from constrained_k2.phases import Phase
from tests.walks import walk
from tests.whole_formats import LarkOracle, TagOracle, transcript_ids

CASES = sorted(path.parent for path in (Path(__file__).parents[1] / "grammars").glob("*/request.json"))
IDS = [case.name for case in CASES]
BYTES = Vocabulary.of_bytes()
STOPS_AND_BROKEN_TEXT = "a text that breaks off inside a UTF-8 character may not end in Lark"


def spec_of(case: Path) -> ToolCallSpec:
    return ToolCallSpec.from_json((case / "request.json").read_bytes())


def transcripts(case: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (case / "transcripts.jsonl").read_text(encoding="utf-8").splitlines()]


def tool(name: str, parameters: Any = None, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


def test_the_cases_are_there() -> None:
    assert len(CASES) >= 12
    rows = [row for case in CASES for row in transcripts(case)]
    assert {row["accept"] for row in rows} == {True, False}
    assert all({row["accept"] for row in transcripts(case)} == {True, False} for case in CASES)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_the_committed_grammar_is_what_is_written_now(case: Path) -> None:
    committed = (case / "grammar.lark").read_text(encoding="utf-8")
    assert committed == build_grammar(spec_of(case)), (
        "if the change is meant: .venv/bin/python scripts/write_grammars.py, and look at the difference"
    )


def verdict(accept: Any, ids: list[int]) -> int | None:
    """The number of the first token that is refused; None if all are taken."""
    return next((number for number, token in enumerate(ids) if not accept(token)), None)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_transcripts_by_the_split_matcher(case: Path) -> None:
    compiled = Compiler(BYTES).compile(spec_of(case))
    for row in transcripts(case):
        ids = transcript_ids(row["text"], BYTES)
        matcher = compiled.matcher()
        assert verdict(lambda token, to=matcher: to.accept_tokens([token]), ids) == row["refused_at"], row["text"]
        assert matcher.is_terminated() == row["accept"], row["text"]


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_transcripts_by_the_lark_grammar(case: Path) -> None:
    text = (case / "grammar.lark").read_text(encoding="utf-8")
    for row in transcripts(case):
        ids = transcript_ids(row["text"], BYTES)
        oracle = LarkOracle(text, BYTES)
        assert verdict(oracle.accept, ids) == row["refused_at"], row["text"]
        ended = oracle.matcher.is_stopped() and bool(ids) and ids[-1] in BYTES.format.stop_ids
        assert ended == row["accept"], row["text"]


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_transcripts_by_the_structural_tag(case: Path) -> None:
    """``xgrammar`` of a line says where structural tags fall short and why; there the verdict must be that one."""
    text = build_grammar(spec_of(case), "xgrammar", markers=BYTES.format)
    for row in transcripts(case):
        ids = transcript_ids(row["text"], BYTES)
        oracle = TagOracle(text, BYTES)
        expected = row.get("xgrammar", row)
        assert verdict(oracle.accept, ids) == expected["refused_at"], row["text"]
        assert oracle.matcher.is_terminated() == expected["accept"], row["text"]


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_transcripts_by_the_parser(case: Path) -> None:
    for row in transcripts(case):
        calls = parse_completion(transcript_ids(row["text"], BYTES), BYTES).tool_calls
        read = [{"name": call.name, "index": call.index, "arguments": call.arguments} for call in calls]
        assert read == row["calls"], row["text"]


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_transcripts_in_other_tokenizations(case: Path, compiler: Compiler) -> None:
    """On a BPE vocabulary the refused token is the one that holds the refused byte, or comes right behind it."""
    vocabulary, spec = compiler.vocabulary, spec_of(case)
    if spec.thinking and "<think>" not in vocabulary.special_tokens:
        pytest.skip("this vocabulary names no <think>")
    compiled = compiler.compile(spec)
    text = (case / "grammar.lark").read_text(encoding="utf-8")
    for row in transcripts(case):
        ids = transcript_ids(row["text"], vocabulary)
        matcher, oracle = compiled.matcher(), LarkOracle(text, vocabulary)
        refused = verdict(lambda token, to=matcher: to.accept_tokens([token]), ids)
        assert refused == verdict(oracle.accept, ids), row["text"]
        assert (refused is None) == (row["refused_at"] is None), row["text"]
        assert matcher.is_terminated() == row["accept"], row["text"]


def allowed(matcher: ToolCallMatcher, vocabulary: Vocabulary) -> np.ndarray[Any, np.dtype[np.bool_]]:
    row = allocate_bitmask(1, vocabulary.size)
    matcher.fill_bitmask(row, 0)
    return np.unpackbits(row.view(np.uint8)[0], bitorder="little")[: vocabulary.size].astype(bool)


def assert_masks_agree(matcher: ToolCallMatcher, oracle: LarkOracle, vocabulary: Vocabulary) -> None:
    """The same tokens between markers and in headers; in text and arguments all but what is written down."""
    ours, theirs = allowed(matcher, vocabulary), oracle.mask()
    differ = {int(token) for token in np.nonzero(ours != theirs)[0]}
    if matcher.phase in (Phase.OPEN, Phase.REASONING, Phase.TEXT):
        for token in differ:  # ours: any bytes are text
            assert ours[token], vocabulary.token_bytes(token)
            raw = vocabulary.ordinary_bytes(token)
            assert not raw or not _is_utf8_beginning(raw), raw
    elif matcher.phase is Phase.ARGUMENTS:
        assert not (ours & ~theirs).any()
        if differ:  # ours: the canonical tokens of a stretch that is forced
            assert ours.sum() == 1
    else:
        assert not differ, (matcher.phase, [vocabulary.token_bytes(token) for token in differ])


def _is_utf8_beginning(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return error.end == len(raw) and error.reason == "unexpected end of data"
    return True


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_what_the_split_matcher_writes_is_in_the_lark_grammar_and_masks_agree(
    case: Path, seed: int, small_compiler: Compiler
) -> None:
    vocabulary, spec = small_compiler.vocabulary, spec_of(case)
    matcher = small_compiler.compile(spec).matcher()
    ids = walk(matcher, vocabulary, seed, [tool.parameters for tool in spec.tools])
    matcher.reset()
    oracle = LarkOracle((case / "grammar.lark").read_text(encoding="utf-8"), vocabulary)
    in_utf8 = True
    for token in ids:
        in_utf8 = in_utf8 or matcher.phase not in (Phase.OPEN, Phase.REASONING, Phase.TEXT)
        assert_masks_agree(matcher, oracle, vocabulary)
        taken = oracle.accept(token)
        if not taken:
            assert not _is_utf8_beginning(vocabulary.ordinary_bytes(token)), STOPS_AND_BROKEN_TEXT
            return
        assert matcher.accept_tokens([token])
        if matcher.phase in (Phase.OPEN, Phase.REASONING, Phase.TEXT) and not oracle.mask()[vocabulary.encode("a")[0]]:
            return  # inside a character: the two go apart from here
    assert matcher.is_terminated()
    assert oracle.matcher.is_stopped()
