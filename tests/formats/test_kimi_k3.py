"""Kimi K3's markers, headers and attributes; how a vocabulary tells its format."""

import json

import pytest

from constrained_k2 import FormatMismatch, Vocabulary, formats
from constrained_k2.formats.base import ABSENT
from constrained_k2.formats.kimi_k2 import BASE_SIZE, KIMI_K2, SPECIAL_COUNT, reserved_text
from constrained_k2.formats.kimi_k3 import KIMI_K3, SPECIAL_TOKENS, escape, unescape
from tests.kit.data import data

TEXTS = {"<|open|>": 1, "<|close|>": 2, "<|sep|>": 3, "<|end_of_msg|>": 4, "[EOS]": 5}


def test_the_special_tokens_are_the_checkpoints() -> None:
    named = json.loads(data("kimi_k3/special_tokens.json").read_text())
    ids = range(BASE_SIZE, BASE_SIZE + SPECIAL_COUNT)
    assert named == {str(each): SPECIAL_TOKENS.get(each - BASE_SIZE, reserved_text(each)) for each in ids}


def test_markers_are_found_by_text() -> None:
    found = formats.format_of(TEXTS)
    assert found.name == "Kimi K3"
    assert (found.section_begin, found.call_begin) == (1, 1)
    assert (found.section_end, found.call_end, found.think_end) == (2, 2, 2)
    assert (found.argument_begin, found.turn_end, found.text_end, found.think_begin) == (3, 4, 5, ABSENT)
    assert found.argument_markers == {1, 2, 3}
    assert found.engine_stop == 5
    assert (KIMI_K2.engine_stop, KIMI_K2.argument_markers) == (KIMI_K2.call_end, frozenset())


@pytest.mark.parametrize("text", TEXTS)
def test_a_vocabulary_of_neither_format_is_refused(text: str) -> None:
    with pytest.raises(FormatMismatch) as raised:
        formats.format_of({known: token_id for known, token_id in TEXTS.items() if known != text})
    message = str(raised.value)
    assert "<|tool_call_begin|>" in message and "(Kimi K2)" in message
    assert f"{text} (Kimi K3)" in message
    assert all(known not in message.split("nor")[1] for known in TEXTS if known != text)


def test_headers_are_escaped_and_indexes_count_from_one() -> None:
    assert KIMI_K3.header_stem('a&"b') == 'call tool="a&amp;&quot;b" index="'
    assert KIMI_K2.header_stem("a") == "functions.a:"
    assert [KIMI_K3.call_index(7, call) for call in range(3)] == [1, 2, 3]
    assert [KIMI_K2.call_index(7, call) for call in range(3)] == [7, 8, 9]


@pytest.mark.parametrize("text", ["", "&quot;", '&"', "&amp;quot;", '"&amp;"', "<|close|>\n"])
def test_attributes_are_escaped_both_ways(text: str) -> None:
    assert unescape(escape(text)) == text
    assert '"' not in escape(text)


def test_a_vocabulary_of_bytes() -> None:
    vocabulary = Vocabulary.of_bytes(KIMI_K3)
    assert vocabulary.format.name == "Kimi K3"
    assert set(vocabulary.special_tokens) == set(TEXTS)
    assert vocabulary.size == 256 + len(TEXTS)


def test_all_formats_allow_the_same_names() -> None:
    """Requests are read, and histories repaired, before the format is known."""
    for known in formats.FORMATS:
        assert known.special_pattern is KIMI_K2.special_pattern
