"""Whole-turn grammars: the cases in grammars/ under each reader, and the split matcher's turns token by token (law 6).

``build_grammar`` and the command ``grammar``: what they refuse, how strictly they enforce, what they print.
"""

import codecs
import io
import json
import random
from collections.abc import Iterable
from itertools import chain
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
from constrained_k2.cli import main
from constrained_k2.turn.phases import Phase
from constrained_k2.vocabulary.bitmask import allocate_bitmask
from scripts.write_grammars import K3, grammar_of
from tests.grammar.whole_turns import (
    ALL,
    ALL_IDS,
    BYTES,
    CASES,
    IDS,
    K3_BYTES,
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
from tests.kit.budget import tries
from tests.kit.data import mcp_servers
from tests.kit.k3_turns import read
from tests.kit.tools import tool
from tests.kit.turns import call, opening, section_end, steps, towards_the_end, turn_end
from tests.kit.walks import row_of, walk


def test_the_cases_are_there() -> None:
    assert min(len(CASES), len(K3_CASES)) >= 12
    assert all({row["accept"] for row in transcripts(case)} == {True, False} for case in ALL)


@pytest.mark.parametrize("case", ALL, ids=ALL_IDS)
def test_the_committed_grammars_are_up_to_date(case: Path) -> None:
    """If the change is intended, run ``python -m scripts.write_grammars`` and review the difference."""
    assert (case / "grammar.lark").read_text(encoding="utf-8") == grammar_of(case)


@pytest.mark.parametrize("case", ALL, ids=ALL_IDS)
def test_transcripts_by_the_split_matcher_the_lark_grammar_and_the_parser(case: Path) -> None:
    text, vocabulary = (case / "grammar.lark").read_text(encoding="utf-8"), bytes_of(case)
    compiled = Compiler(vocabulary).compile(spec_of(case))
    for row in transcripts(case):
        ids = transcript_ids(row["text"], vocabulary)
        matcher, oracle = compiled.matcher(in_reasoning=in_reasoning(case)), LarkOracle(text, vocabulary)
        assert refused_at(matcher, ids) == verdict(oracle.accept, ids) == row["refused_at"], row["text"]
        has_ended = oracle.matcher.is_stopped() and bool(ids) and ids[-1] in vocabulary.format.stop_ids
        assert matcher.is_terminated() == has_ended == row["accept"], row["text"]
        calls = parse_completion(ids, vocabulary, in_reasoning=in_reasoning(case)).tool_calls
        read = [{"name": call.name, "index": call.index, "arguments": call.arguments} for call in calls]
        assert read == row["calls"], row["text"]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=IDS)
@pytest.mark.parametrize("name", ["xgrammar", "ebnf"])
def test_transcripts_by_the_structural_tag_and_its_ebnf(case: Path, name: str) -> None:
    """A line's ``xgrammar`` is the verdict of a structural tag where it differs, and why; ``ebnf`` with markers as text."""
    is_ebnf = name == "ebnf"
    text = build_grammar(spec_of(case), "xgrammar", *(["ebnf"] if is_ebnf else []), markers=BYTES.format)
    for row in transcripts(case):
        oracle = TagOracle(text, BYTES, ebnf=is_ebnf)
        refused_token = verdict(oracle.accept, transcript_ids(row["text"], BYTES))
        expected = row.get(name, row.get("xgrammar", row))
        assert oracle.matcher.is_terminated() == expected["accept"], row["text"]
        assert is_ebnf or refused_token == expected["refused_at"], row["text"]


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
        codecs.getincrementaldecoder("utf-8")().decode(raw)
    except UnicodeDecodeError:
        return False
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


def preludes_of(case: Path, spec: ToolCallSpec) -> list[str]:
    """Texts up to the section of Kimi K2's turns: a random choice in free text would hardly ever begin one."""
    if case.parent == K3:
        return [""] * 4
    preludes = PRELUDES[spec.choice]
    if spec.answer is not None:
        first = "[" if json.loads(spec.answer.text).get("type") == "array" else "{"
        preludes = [first] if spec.max_calls == 0 else [first, "<|tool_calls_section_begin|>"]
    if spec.thinking:
        preludes = [*preludes, *(f"<think>So: </think>{prelude}" for prelude in preludes)]
        preludes.append("<think>So: <|tool_calls_section_begin|>")
    return preludes


def random_turn(both: Both, seed: int, spec: ToolCallSpec) -> list[int]:
    """Write at random until a stop, with a preference for markers, what ends names and JSON, and the schemas' keys."""
    stepped: Any = both
    if both.vocabulary.format.argument_encoding == "json":
        schemas = [tool.parameters for tool in spec.tools]
        schemas += [] if spec.answer is None else [json.loads(spec.answer.text)]
        return walk(stepped, both.vocabulary, seed, schemas)
    vocabulary, chance = both.vocabulary, random.Random(seed)
    whole = np.array([vocabulary.ordinary_bytes(token).isascii() for token in range(vocabulary.size)])
    ends = towards_the_end(vocabulary, chance, share=0.5)

    def prefer(allowed: npt.NDArray[Any]) -> Any:
        is_text = both.phase in (Phase.START, Phase.REASONING, Phase.TEXT)
        return ends(allowed[whole[allowed]] if is_text else allowed)  # whole characters: see assert_masks_agree

    return steps(stepped, chance, prefer=prefer)


@pytest.mark.parametrize("drawn_from", ["split", "lark"])
@pytest.mark.parametrize("case", ALL, ids=ALL_IDS)
def test_turns_drawn_under_one_mask_are_accepted_by_the_other_and_masks_agree(
    case: Path, drawn_from: str, request: pytest.FixtureRequest
) -> None:
    compiler: Compiler = request.getfixturevalue(f"{'k3_' if case.parent == K3 else ''}small_compiler")
    vocabulary, spec = compiler.vocabulary, spec_of(case)
    text, compiled = (case / "grammar.lark").read_text(encoding="utf-8"), compiler.compile(spec)
    calls = 0
    for seed, prelude in enumerate(preludes_of(case, spec) * 2):
        both = Both(compiled.matcher(in_reasoning=in_reasoning(case)), text, vocabulary, drawn_from)
        for token in transcript_ids(prelude, vocabulary):
            both.fill_bitmask(allocate_bitmask(1, vocabulary.size))
            assert both.accept_tokens([token]), prelude
        ids = random_turn(both, seed, spec)
        assert both.oracle.matcher.is_stopped()
        if case.parent == K3:
            turn = read(ids, vocabulary, in_reasoning=in_reasoning(case))
            assert [index for _, index, _ in turn.calls] == list(range(1, len(turn.calls) + 1))
            calls += len(turn.calls)
    assert bool(calls) is (spec.max_calls != 0) or case.parent != K3


@pytest.mark.slow
@pytest.mark.parametrize("first_server", range(7))
@pytest.mark.parametrize("which", ["real_compiler", "k3_real_compiler"])
def test_public_tools_on_the_real_vocabulary(which: str, first_server: int, request: pytest.FixtureRequest) -> None:
    compiler: Compiler = request.getfixturevalue(which)
    vocabulary = compiler.vocabulary
    for number, tools in enumerate(mcp_servers()[first_server::7]):
        spec = ToolCallSpec.from_openai({"tools": tools, "tool_choice": "required"})
        text = build_grammar(spec, markers=vocabulary.format)
        both = Both(compiler.compile(spec).matcher(), text, vocabulary, ("split", "lark")[number % 2])
        assert parse_completion(random_turn(both, number, spec), vocabulary).tool_calls
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


def refused(vocabulary: Vocabulary, spec: ToolCallSpec, indexes: Iterable[int]) -> tuple[int | None, int | None]:
    """Return the token at which the split matcher and the whole-turn grammar refuse calls of these indexes, from 0."""
    calls = chain.from_iterable(call(vocabulary, {}, index=index) for index in indexes)
    ids = [*opening(vocabulary), *calls, *section_end(vocabulary), *turn_end(vocabulary)]
    oracle = LarkOracle(build_grammar(spec, markers=vocabulary.format), vocabulary)
    return refused_at(Compiler(vocabulary).compile(spec).matcher(), ids), verdict(oracle.accept, ids)


@pytest.mark.parametrize(
    ("vocabulary", "first"),
    [*((BYTES, first) for first in (0, 7, 95, 990, 9_000, 999_999_990)), (K3_BYTES, 7)],
    ids=["0", "7", "95", "990", "9000", "999999990", "Kimi K3"],
)
def test_indexes_count_up_across_every_carry(vocabulary: Vocabulary, first: int) -> None:
    """In Kimi K3's turns from the first, though seven calls precede them."""
    spec = ToolCallSpec.from_openai({"tools": [tool("f")], "first_index": first})
    due = [*range(0 if vocabulary is K3_BYTES else first, 120 + first)][:120]
    assert refused(vocabulary, spec, due) == (None, None)
    for at in (0, 50):
        for wrong in {due[at] + 1, due[at] - 1, due[at] % 10, 7} - {due[at]}:
            ours, theirs = refused(vocabulary, spec, [*due[:at], wrong, *due[at + 1 :]])
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
    assert refused(BYTES, spec, range(400)) == (None, None)


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
    ids = BYTES.encode(BYTES.decode(render_tool_calls([ToolCall("f", 0, "{}")], BYTES)))
    assert verdict(TagOracle(build_grammar(spec, "xgrammar", "ebnf"), BYTES, ebnf=True).accept, ids) is None
    assert verdict(TagOracle(build_grammar(spec, "xgrammar", markers=BYTES.format), BYTES).accept, ids) == 0
    assert verdict(LarkOracle(build_grammar(spec), BYTES).accept, ids) == 0


each_engine = pytest.mark.parametrize("engine", ["llguidance", pytest.param("xgrammar", marks=pytest.mark.slow)])


@pytest.mark.parametrize(
    ("engine", "format_name"),
    [("llguidance", "ebnf"), ("llguidance", "structural-tag"), ("xgrammar", "lark"), ("x", None)],
)
def test_unknown_engines_and_formats_are_refused(engine: Any, format_name: str | None) -> None:
    with pytest.raises(InvalidRequest, match="does not support|unknown engine"):
        build_grammar(ToolCallSpec(), engine, format_name)


@each_engine
def test_a_schema_without_a_grammar_is_refused_by_name_if_strict(engine: Any, caplog: Any) -> None:
    body = {"tools": [tool("f"), tool("g", {"not": {}})]}
    assert build_grammar(ToolCallSpec.from_openai(body), engine)
    assert "'g'].function.parameters: '# (no value satisfies" in caplog.text
    body = {"tools": [tool("f"), tool("g", {"not": {}}, strict=True)]}
    with pytest.raises(UnsupportedSchema, match="'g'.*no value satisfies"):
        build_grammar(ToolCallSpec.from_openai(body), engine)
    assert build_grammar(ToolCallSpec.from_openai(body | {"tool_choice": "none"}), engine)


@each_engine
def test_the_policy_decides_how_strictly_a_schema_is_enforced(engine: Any) -> None:
    body = {"tools": [tool("f", {"type": "object", "properties": {"q": {"const": "kept"}}}, strict=False)]}
    spec = ToolCallSpec.from_openai(body)
    assert "kept" in build_grammar(spec, engine)
    assert "kept" not in build_grammar(spec, engine, policy=StrictPolicy(strict_false="json_object"))


@each_engine
def test_the_spec_and_the_command_say_whether_undeclared_keys_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: Any
) -> None:
    body = {"tools": [tool("f", {"type": "object", "properties": {"q": {}}})]}
    (tmp_path / "request.json").write_text(json.dumps(body))
    texts = {}
    for setting in ("allow", "forbid"):
        texts[setting] = build_grammar(ToolCallSpec.from_openai(body | {"undeclared_keys": setting}), engine)
        arguments = [str(tmp_path / "request.json"), "--engine", engine, "--undeclared-keys", setting]
        assert main(["grammar", *arguments]) == 0
        assert capsys.readouterr().out.rstrip("\n") == texts[setting].rstrip("\n")
    assert len(texts["forbid"]) < len(texts["allow"])


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = CASES[0]
    assert main(["grammar", str(case / "request.json")]) == 0
    assert capsys.readouterr().out == (case / "grammar.lark").read_text(encoding="utf-8")
    assert main(["grammar", str(case / "request.json"), "--engine", "xgrammar", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["engine"], printed["format"]) == ("xgrammar", "structural-tag")
    assert json.loads(printed["grammar"])["type"] == "structural_tag"
    assert main(["grammar", str(tmp_path / "none")]) == 2
    assert main(["grammar", str(case / "request.json"), "--format", "ebnf"]) == 2
    broken = tmp_path / "request.json"
    broken.write_text(json.dumps({"tools": [tool("g", {"not": {}}, strict=True)]}))
    assert main(["grammar", str(broken)]) == 1
    assert "tools[name='g']" in capsys.readouterr().err


def test_the_command_writes_kimi_k3s_turns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    k3 = ["--wire-format", "kimi-k3"]
    for case in K3_CASES:
        assert main(["grammar", str(case / "request.json"), *k3]) == 0
        assert capsys.readouterr().out == (case / "grammar.lark").read_text(encoding="utf-8")
    request = str(CASES[0] / "request.json")
    assert main(["grammar", request, *k3]) == 0
    without = capsys.readouterr().out.removesuffix("TEXT: /(?s:.)+/\n")
    assert main(["grammar", request, *k3, "--in-reasoning"]) == 0
    reasoning = 'TEXT? <|close|> "think" <|sep|> <|open|> "response" <|sep|>'
    inside = without.replace("start: ", f"start: {reasoning} ", 1)
    assert capsys.readouterr().out == f"{inside}TEXT: /(?s:.)+/\n"
    later = tmp_path / "later.json"
    later.write_text(json.dumps({"tools": [tool("g", {})], "first_index": 4, "parallel_tool_calls": False}))
    assert main(["grammar", str(later), *k3]) == 0
    assert 'index=\\"1\\"' in capsys.readouterr().out
    for format_name in ("structural-tag", "ebnf"):
        assert main(["grammar", request, *k3, "--engine", "xgrammar", "--format", format_name]) == 2
        assert "Kimi K3's arguments. Use 'llguidance'" in capsys.readouterr().err


def test_the_command_says_what_the_formats_cannot_do(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["grammar", "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    said = (
        "any digits as the index",
        "only in the schema's order",
        "ordinary tokens",
        "drops many keywords",
        "hundred calls",
    )
    assert not [each for each in ("example: constrained-k2 grammar", *said) if each not in printed]


def test_the_command_reads_standard_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO((CASES[0] / "request.json").read_bytes())))
    assert main(["grammar", "-", "--in-reasoning"]) == 0
    assert capsys.readouterr().out == build_grammar(spec_of(CASES[0]), in_reasoning=True)
