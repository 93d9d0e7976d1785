"""The cases in grammars/: the committed grammars, and every transcript under four readers."""

from pathlib import Path

import pytest

from constrained_k2 import Compiler, build_grammar, parse_completion
from scripts.write_grammars import K3, grammar_of
from tests.grammar.whole_turns import (
    ALL,
    ALL_IDS,
    BYTES,
    CASES,
    IDS,
    K3_CASES,
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


def test_the_cases_are_there() -> None:
    assert len(CASES) >= 12
    assert len(K3_CASES) >= 12
    assert all({row["accept"] for row in transcripts(case)} == {True, False} for case in ALL)


@pytest.mark.parametrize("case", ALL, ids=ALL_IDS)
def test_the_committed_grammars_are_up_to_date(case: Path) -> None:
    committed = (case / "grammar.lark").read_text(encoding="utf-8")
    assert committed == grammar_of(case), (
        "if the change is intended, run .venv/bin/python -m scripts.write_grammars and review the difference"
    )


@pytest.mark.parametrize("case", ALL, ids=ALL_IDS)
def test_transcripts_by_the_split_matcher(case: Path) -> None:
    vocabulary = bytes_of(case)
    compiled = Compiler(vocabulary).compile(spec_of(case))
    for row in transcripts(case):
        ids = transcript_ids(row["text"], vocabulary)
        matcher = compiled.matcher(in_reasoning=in_reasoning(case))
        assert refused_at(matcher, ids) == row["refused_at"], row["text"]
        assert matcher.is_terminated() == row["accept"], row["text"]


@pytest.mark.parametrize("case", ALL, ids=ALL_IDS)
def test_transcripts_by_the_lark_grammar(case: Path) -> None:
    text, vocabulary = (case / "grammar.lark").read_text(encoding="utf-8"), bytes_of(case)
    for row in transcripts(case):
        ids = transcript_ids(row["text"], vocabulary)
        oracle = LarkOracle(text, vocabulary)
        assert verdict(oracle.accept, ids) == row["refused_at"], row["text"]
        ended = oracle.matcher.is_stopped() and bool(ids) and ids[-1] in vocabulary.format.stop_ids
        assert ended == row["accept"], row["text"]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_transcripts_by_the_structural_tag(case: Path) -> None:
    """A line's ``xgrammar`` is the verdict of a structural tag where it differs, and why."""
    text = build_grammar(spec_of(case), "xgrammar", markers=BYTES.format)
    for row in transcripts(case):
        ids = transcript_ids(row["text"], BYTES)
        oracle = TagOracle(text, BYTES)
        expected = row.get("xgrammar", row)
        assert verdict(oracle.accept, ids) == expected["refused_at"], row["text"]
        assert oracle.matcher.is_terminated() == expected["accept"], row["text"]


@pytest.mark.parametrize("case", ALL, ids=ALL_IDS)
def test_transcripts_by_the_parser(case: Path) -> None:
    vocabulary = bytes_of(case)
    for row in transcripts(case):
        ids = transcript_ids(row["text"], vocabulary)
        calls = parse_completion(ids, vocabulary, in_reasoning=in_reasoning(case)).tool_calls
        read = [{"name": call.name, "index": call.index, "arguments": call.arguments} for call in calls]
        assert read == row["calls"], row["text"]


@pytest.mark.parametrize("size", ["small", pytest.param("real", marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", ALL, ids=ALL_IDS)
def test_transcripts_in_other_tokenizations(case: Path, size: str, request: pytest.FixtureRequest) -> None:
    """On a BPE vocabulary the refused token is the one with the refused byte, or the next one."""
    compiler: Compiler = request.getfixturevalue(f"{'k3_' if case.parent == K3 else ''}{size}_compiler")
    vocabulary, spec = compiler.vocabulary, spec_of(case)
    if case.parent != K3 and spec.thinking and "<think>" not in vocabulary.special_tokens:
        pytest.skip("this vocabulary names no <think>")
    compiled = compiler.compile(spec)
    text = (case / "grammar.lark").read_text(encoding="utf-8")
    for row in transcripts(case):
        ids = transcript_ids(row["text"], vocabulary)
        matcher, oracle = compiled.matcher(in_reasoning=in_reasoning(case)), LarkOracle(text, vocabulary)
        refused = refused_at(matcher, ids)
        assert refused == verdict(oracle.accept, ids), row["text"]
        assert (refused is None) == (row["refused_at"] is None), row["text"]
        assert matcher.is_terminated() == row["accept"], row["text"]


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_ebnf_is_the_structural_tag_with_markers_as_text(case: Path) -> None:
    """A line's ``ebnf`` is the verdict of the EBNF where markers as text make a difference, and why."""
    text = build_grammar(spec_of(case), "xgrammar", "ebnf")
    for row in transcripts(case):
        ids = transcript_ids(row["text"], BYTES)
        oracle = TagOracle(text, BYTES, ebnf=True)
        verdict(oracle.accept, ids)
        expected = row.get("ebnf", row.get("xgrammar", row))["accept"]
        assert oracle.matcher.is_terminated() == expected, row["text"]
