"""The walks over JSON text agree on it, however it is split: parse positions, written keys, and drafts' trackers.

Each keeps for itself what the others do not need: positions are shared between calls, written keys take constant memory,
drafts know the schema. None may see a bracket, a key or the end of a string where another one does not.
"""

import codecs
import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from constrained_k2 import Vocabulary
from constrained_k2.engines.llguidance.engine import LLGuidanceEngine
from constrained_k2.engines.llguidance.position import StateKind
from constrained_k2.engines.llguidance.position_tracker import PositionTracker
from constrained_k2.engines.llguidance.written.items import NO_PATHS
from constrained_k2.engines.llguidance.written.scanner import Scanner, Snapshot, Within
from constrained_k2.turn.cursors.json_cursor import JsonCursor
from tests.kit.budget import tries

STRINGS = frozenset({StateKind.IN_KEY, StateKind.IN_FREE_STRING, StateKind.IN_LISTED_STRING, StateKind.IN_OTHER_STRING,
                     StateKind.IN_TRACKED_STRING})  # fmt: skip
TEXT = st.text(st.sampled_from('ab"\\/{}[]:, \n\té一😀'), max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 10**6) | st.floats(-9, 9) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
SCHEMAS: list[dict[str, Any]] = [
    {},
    {"properties": {"a": {"type": ["array", "string"], "items": {"maxLength": 3}}, '"': {"pattern": "a"}}},
    {"anyOf": [{"properties": {"a": {"type": "string"}}}, {"properties": {"a": {}}}]},
]


@pytest.fixture(scope="module")
def engine(small_vocabulary: Vocabulary) -> LLGuidanceEngine:
    return LLGuidanceEngine(small_vocabulary)


def spelled(value: Any, chance: random.Random) -> str:
    """A value as JSON, with blanks between its parts and escapes in its strings."""
    text = json.dumps(value, ensure_ascii=chance.random() < 0.3)
    if chance.random() < 0.5:
        return text
    return json.dumps(value, ensure_ascii=False, indent=chance.choice((0, 1, "\t")), separators=(" ,", ": "))


def brackets(at: Snapshot) -> list[bool]:
    """The open containers, outermost first: True for an object."""
    found, frame = list[bool](), at.frame
    while frame is not None:
        found.append(frame.is_object)
        frame = frame.outer
    return found[::-1]


@settings(max_examples=tries(60, fast=20, everything=400))
@given(
    value=st.dictionaries(TEXT, VALUES, min_size=1, max_size=4),
    seed=st.integers(0, 2**32),
    which=st.sampled_from(range(3)),
)
def test_all_walks_see_one_text(engine: LLGuidanceEngine, value: Any, seed: int, which: int) -> None:
    chance = random.Random(seed)
    grammar = engine.compile(json.dumps({"type": "object", **SCHEMAS[which]}))
    assert grammar.dfa is not None
    tracker = grammar.dfa.tracker
    assert isinstance(tracker, PositionTracker)
    position, drafts = tracker.start, JsonCursor(SCHEMAS[which])
    scanner = Scanner(engine.mask_cache.written_tokens(), NO_PATHS, is_xml=False)
    written, decoder = scanner.start, codecs.getincrementaldecoder("utf-8")()
    raw, start, length = spelled(value, chance).encode(), 0, 0
    while start < len(raw):
        piece = raw[start : start + chance.randrange(1, 6)]
        start, length = start + len(piece), length + 1
        position = tracker.follow(position, piece)
        written = scanner.follow(written, piece, length, may_repeat=True)
        drafts.feed(decoder.decode(piece))
        open_ = [frame.is_object for frame in drafts.frames]
        assert brackets(written) == open_, raw[:start]
        assert (written.within in {Within.STRING, Within.KEPT}) == drafts.in_string, raw[:start]
        if position.expect is StateKind.LOST:
            continue
        assert [each.is_object for each in position.open] == open_, raw[:start]
        assert (position.expect in STRINGS) == drafts.in_string, raw[:start]
    assert drafts.is_done
    assert position.is_end or position.expect is StateKind.LOST
