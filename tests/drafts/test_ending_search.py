"""The search for what ends a string or an array, with an engine that a regular expression replaces."""

import json
import re
from typing import Any, cast

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
    assert found(small_vocabulary, {"type": "string"}, '"x', "", is_allowed=True) == ("", 0), "it may end"
