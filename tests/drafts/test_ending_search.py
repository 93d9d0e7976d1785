"""The search for what ends a string or an array, with an engine that a regular expression replaces."""

import json
import re
from typing import Any, cast

import pytest

from constrained_k2 import Vocabulary
from constrained_k2.engines.protocol import ArgumentMatcher
from constrained_k2.turn.drafts.ending_search import goals_of, search, searched_pieces
from constrained_k2.turn.drafts.json_tracker import JsonTracker


class Engine:
    """Accepts what a pattern of all beginnings matches."""

    def __init__(self, vocabulary: Vocabulary, begun: str, may_begin: str) -> None:
        self.asked = 0
        self._decode, self._begun, self._may_begin = vocabulary.decode, begun, re.compile(may_begin)

    def validate(self, ids: list[int]) -> bool:
        self.asked += 1
        return self._may_begin.fullmatch(self._begun + self._decode(ids)) is not None


def found(vocabulary: Vocabulary, schema: Any, begun: str, may_begin: str, *, is_allowed: bool) -> tuple[str, int]:
    tracker, engine = JsonTracker(schema), Engine(vocabulary, begun, may_begin)
    tracker.feed(begun)
    goals = goals_of(tracker, is_allowed=is_allowed)
    pieces = search(tracker, goals, searched_pieces, lambda: cast("ArgumentMatcher", engine), vocabulary)
    return "".join(map(str, pieces)), engine.asked


ITEMS = {"type": "array", "items": {"type": "string"}, "contains": {"enum": [2, "low"]}}
OPEN_STRINGS = r'\[("[^"]*",)*("[^"]*"?)?'
WITH_LOW = OPEN_STRINGS + r'|\[("[^"]*",)*"low"(,"[^"]*")*\]'


@pytest.mark.parametrize(
    ("begun", "way"), [('["x"', ',"low"]'), ('["lo', 'w"]'), ('["low"', ""), ('["low', '"]'), ("[", '"low"]')]
)
def test_an_array_gets_the_item_that_the_engine_accepts(small_vocabulary: Vocabulary, begun: str, way: str) -> None:
    assert found(small_vocabulary, ITEMS, begun, WITH_LOW, is_allowed=begun.endswith('low"'))[0] == way


def test_a_string_gets_what_the_engine_accepts(small_vocabulary: Vocabulary) -> None:
    schema = {"type": "string", "pattern": r"\bword\b"}
    assert found(small_vocabulary, schema, '"xword', r'"[^"]*|"(.*\W)?word"', is_allowed=False)[0] == ' word"'
    assert found(small_vocabulary, schema, '"x', "", is_allowed=True) == ("", 0), "nothing is searched where it may end"


def test_no_search_is_long(small_vocabulary: Vocabulary) -> None:
    words = [f"word{number}" for number in range(500)]
    for schema, begun, may_begin in (
        (ITEMS | {"contains": {"enum": words}}, "[", OPEN_STRINGS),
        (
            {"type": "array", "contains": {"type": "array", "contains": {"enum": [*words, 1, [[]]]}}},
            "[[",
            r"\[\[[^\]]*",
        ),
        ({"enum": [*words, 1], "pattern": "^a(?!b)"}, json.dumps("a" * 300)[:-1], r'"[^"]*'),
    ):
        way, asked = found(small_vocabulary, schema, begun, may_begin, is_allowed=False)
        assert not way and 0 < asked < 1000, (way, asked)
