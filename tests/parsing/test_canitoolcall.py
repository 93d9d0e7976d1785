"""Kimi's cases in canitoolcall, a test suite for tool parsers: outputs of K2, K2.6 and K3, with the expected calls.

The suite's checks run at the tolerant level, on whole outputs and on streams with each of its splits. A check fails if
it says FAIL. Texts that differ only in blanks at their ends pass, as in the suite's own table of engines.
"""

from pathlib import Path

import pytest
from canitoolcall.checks import run_checks
from canitoolcall.chunking import DEFAULT_STRATEGIES, split
from canitoolcall.fixtures import Fixture, load_families, load_fixtures
from canitoolcall.results import Observation, ParsedToolCall, ParseResult, Status

from constrained_k2 import ToolCallParser, Vocabulary
from constrained_k2.parsing import Completion
from constrained_k2.request.spec import Tool
from tests.kit.k3_turns import as_k3

FAMILY = load_families()["kimi"]
FIXTURES = [fixture for fixture in load_fixtures() if fixture.family == "kimi"]
PROMPTS = {model.repo: model.default_generation_prompt for model in FAMILY.reference_models}


@pytest.fixture(scope="module")
def vocabularies(real_tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Vocabulary]:
    """Kimi K2's vocabulary (False) and Kimi K3's (True), which has the same ordinary tokens."""
    k3 = as_k3(real_tokenizer, tmp_path_factory.mktemp("k3"))
    return {False: Vocabulary.from_pretrained(real_tokenizer), True: Vocabulary.from_pretrained(k3)}


def parsed(fixture: Fixture, groups: list[list[int]], vocabulary: Vocabulary) -> ParseResult:
    prompt = fixture.generation_prompt or PROMPTS[fixture.reference_model] or ""
    parser = ToolCallParser(
        vocabulary,
        in_reasoning=prompt.endswith(("<think>", "<|open|>think<|sep|>")),
        level="tolerant",
        tools=[Tool(tool["function"]["name"]) for tool in fixture.tools],
    )
    events = [event for group in groups for event in parser.feed(group)]
    read = Completion.from_events([*events, *parser.finish(stopped=not fixture.truncated)])
    calls = tuple(ParsedToolCall(call.name, call.arguments) for call in read.tool_calls)
    return ParseResult(read.content or None, read.reasoning or None, calls)


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda fixture: fixture.id)
def test_the_kimi_family(fixture: Fixture, vocabularies: dict[bool, Vocabulary]) -> None:
    vocabulary = vocabularies["x-kimi-k3" in fixture.tags]
    ids = list(fixture.output_token_ids or ())
    special = frozenset(vocabulary.special_tokens.values())
    observed = Observation(
        parsed(fixture, [ids], vocabulary),
        {each.id: parsed(fixture, split(ids, each, special), vocabulary) for each in DEFAULT_STRATEGIES},
    )
    rows = run_checks(fixture, FAMILY, observed)
    assert rows
    assert [row for row in rows if row.status not in (Status.PASS, Status.SOFT_PASS)] == []
