"""The tokens that mean a declared function, against all tokens; and turns with declined calls."""

import json
import random
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from constrained_k2 import Compiler, ToolCallSpec, Vocabulary, parse_completion
from constrained_k2.formats.base import WireFormat
from constrained_k2.formats.kimi_k2 import KIMI_K2
from constrained_k2.formats.kimi_k3 import KIMI_K3
from constrained_k2.turn.call_id import CallIdTrie
from constrained_k2.turn.matcher import ToolCallMatcher
from constrained_k2.turn.phases import Phase
from constrained_k2.turn.token_restriction import TokenRestriction
from scripts.bundled_samples.ordinary import TOOLS
from tests.kit.budget import SEED, tries
from tests.kit.turns import steps

NAMES = ("search_files", "search", "getWeather", "a.b-c", "x:y", "x", "a", "a:7b", "import_", "_", "查询")
BODY: dict[str, Any] = {"tools": TOOLS[:4]}
SCHEMAS = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in TOOLS[:4]}


OPENINGS: dict[str, Callable[[WireFormat], list[int]]] = {
    "Kimi K2": lambda markers: [markers.section_begin, markers.call_begin],
    "Kimi K3": lambda markers: [
        *(markers.call_end, *b"response", markers.argument_begin),
        *(markers.call_begin, *b"tools", markers.argument_begin, markers.call_begin),
    ],
}


def plain(text: bytes) -> bytes:
    """The slow and obvious way: lower case, no separators."""
    return re.sub(rb"[_\-. \t]", b"", text).lower()


@pytest.mark.parametrize("wire_format", [KIMI_K2, KIMI_K3], ids=lambda each: each.name)
def test_meant_tokens_against_all_tokens(
    small_vocabulary: Vocabulary, k3_small_compiler: Compiler, wire_format: WireFormat
) -> None:
    vocabulary = small_vocabulary if wire_format is KIMI_K2 else k3_small_compiler.vocabulary
    markers = vocabulary.format
    trie = CallIdTrie(NAMES, vocabulary)
    begin, index = markers.header_begin.encode(), markers.header_index.encode()
    stems = [begin + name.encode() + index for name in NAMES]
    texts = {token: raw for token in range(vocabulary.size) if (raw := vocabulary.ordinary_bytes(token))}
    in_names = {stem[:cut] for stem in stems for cut in range(len(stem) - len(index) + 1)}
    for prefix in sorted(in_names):
        written = plain(prefix)
        wholes = {plain(stem) for stem in stems if plain(stem).startswith(written)}
        bare = {plain(stem[len(begin) :]) for stem in stems} if not prefix else set()
        rest = {whole[len(written) :] for whole in wholes} | bare
        ending = len(plain(index))
        expected = set()
        for token, raw in texts.items():
            text = plain(raw)
            if text:
                is_meant = any(each.startswith(text) or text.startswith(each) for each in rest if each)
            else:
                is_meant = any(len(whole) - ending > len(written) for whole in wholes)
            if is_meant:
                expected.add(token)
        if any(len(whole) == len(written) + ending for whole in wholes):
            expected.add(markers.argument_begin)
        for index_number in (7, 12):
            call_ids = trie.with_index(index_number)
            found = call_ids.meant(prefix)
            assert found is not None
            assert found.tolist() == sorted(expected.union(call_ids.allowed(prefix).listed)), prefix
    for prefix in {stem[:cut] for stem in stems for cut in range(len(stem) + 1)} - in_names:
        assert trie.meant(prefix) is None


def test_where_calls_may_be_declined(small_vocabulary: Vocabulary) -> None:
    compiler = Compiler(small_vocabulary, undeclared_calls="decline", call_threshold=0.5)
    markers = small_vocabulary.format
    begun = [markers.section_begin, markers.call_begin, *small_vocabulary.encode("functions.")]
    form = {"response_format": {"type": "json_object"}}
    for added, threshold, closes in (
        ({}, 0.5, True),
        ({"undeclared_calls": "nearest"}, 0.0, False),
        ({"tool_choice": "required"}, 0.5, False),
        (form, 0.5, False),
    ):
        matcher = compiler.compile(ToolCallSpec.from_openai(BODY | added)).matcher()
        assert matcher.accept_tokens(begun)
        intent = matcher.intent()
        assert (intent is not None) == bool(threshold)
        if intent is not None:
            assert (intent.threshold, intent.closing) == (threshold, markers.section_end if closes else None)
        assert bool(matcher.validate_tokens([markers.section_end])) == closes
    assert Compiler(small_vocabulary).compile(ToolCallSpec.from_openai(BODY)).matcher().intent() is None


def test_a_client_that_forbids_the_closing_token_declines_nothing(small_vocabulary: Vocabulary) -> None:
    compiled = Compiler(small_vocabulary, undeclared_calls="decline").compile(ToolCallSpec.from_openai(BODY))
    markers = small_vocabulary.format
    begun = [markers.section_begin, markers.call_begin, *small_vocabulary.encode("functions.")]
    every = range(small_vocabulary.size)
    for allowed, words, declines in (
        (None, [[markers.section_end]], False),
        ([token for token in every if token != markers.section_end], [], False),
        (None, [[begun[-1], markers.section_end]], False),
        (every, [[5]], True),
    ):
        matcher = compiled.matcher()
        assert matcher.accept_tokens(begun)
        matcher.limits = TokenRestriction(small_vocabulary.size, allowed, words, lambda: None)
        assert (matcher.intent() is not None) == declines


def closed(matcher: ToolCallMatcher, chance: random.Random) -> list[int]:
    """A turn of random tokens in which some of the calls are declined; empty if it does not end."""
    markers, special = matcher.vocabulary.format, {*matcher.vocabulary.special_tokens.values()}
    ends = {markers.section_end, markers.call_end, *b'"}]'}

    def prefer(allowed: Any) -> list[int]:
        tokens: list[int] = allowed.tolist()
        intent = matcher.intent()
        if intent is not None:
            assert matcher.phase is Phase.CALL_ID and set(tokens) <= set(intent.meant.tolist())
            if chance.random() < 0.04 and intent.closing is not None:
                return [intent.closing]
        preferred = [token for token in tokens if token in ends]
        if preferred and matcher.phase is not Phase.BETWEEN and chance.random() < 0.6:
            return preferred
        if matcher.num_tokens > 400 and matcher.phase in (Phase.TEXT, Phase.BETWEEN):
            return [token for token in tokens if token in special] or tokens
        return tokens

    ids = steps(matcher, chance, 3000, prefer)
    return ids if matcher.is_terminated() else []


@pytest.mark.parametrize("wire_format", [KIMI_K2, KIMI_K3], ids=lambda each: each.name)
def test_walks_with_declined_calls(wire_format: WireFormat) -> None:
    """A declined call leaves nothing behind: calls are declared and valid, indexes exact, and the turn goes on."""
    vocabulary = Vocabulary.of_bytes(wire_format)
    compiled = Compiler(vocabulary, undeclared_calls="decline").compile(ToolCallSpec.from_openai(BODY))
    declined, with_calls, walks = 0, 0, tries(120, fast=80)  # an eighth of them is declined behind a call
    for seed in range(walks):
        chance = random.Random(SEED + seed)
        matcher = compiled.matcher()
        opening = OPENINGS[wire_format.name](vocabulary.format) if seed % 3 else []
        assert matcher.accept_tokens(opening)
        ids = [*opening, *closed(matcher, chance)]
        if not matcher.is_terminated():
            continue
        done = parse_completion(ids, vocabulary)
        assert not (done.malformed or done.cut_calls)
        assert len(done.declined) == matcher.has_declined
        first = vocabulary.format.first_index
        assert [call.index for call in done.tool_calls] == list(range(first, first + len(done.tool_calls)))
        for call in done.tool_calls:
            jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
        declined += matcher.has_declined
        with_calls += matcher.has_declined and bool(done.tool_calls)
        fork = compiled.matcher()
        assert fork.accept_tokens(ids)
        for count in range(1, min(len(ids), 20)):
            fork.rollback(count)
            assert fork.accept_tokens(ids[-count:])
            assert fork.has_declined == matcher.has_declined
    assert declined > walks // 10
    assert with_calls
