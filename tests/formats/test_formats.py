"""Call ids, names, headers and markers of Kimi K2 and K3; how a vocabulary tells its format."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from constrained_k2 import KIMI_K2, FormatMismatch, InvalidRequest, Vocabulary, formats
from constrained_k2.formats.base import ABSENT
from constrained_k2.formats.kimi_k2 import BASE_SIZE, MARKER_TEXTS, SPECIAL_COUNT, reserved_text
from constrained_k2.formats.kimi_k3 import KIMI_K3, SPECIAL_TOKENS, escape, unescape
from tests.kit.data import data

K3_TEXTS = {"<|open|>": 1, "<|close|>": 2, "<|sep|>": 3, "<|end_of_msg|>": 4, "[EOS]": 5}
names = st.text(min_size=1, max_size=40).filter(lambda name: not KIMI_K2.name_problem(name))


@pytest.mark.parametrize(
    ("call_id", "name", "index"),
    [
        ("functions.a.b:0", "a.b", 0), ("functions.get-weather:3", "get-weather", 3), ("functions.x:y:0", "x:y", 0),
        ("functions.查询:12", "查询", 12), ("functions.functions.f:1", "functions.f", 1), ("functions. :1", " ", 1),
        ("functions.x:0:0", "x:0", 0),
    ],
)  # fmt: skip
def test_call_ids_read_both_ways(call_id: str, name: str, index: int) -> None:
    assert KIMI_K2.call_id(name, index) == call_id
    assert KIMI_K2.parse_call_id(call_id) == (name, index)


@given(names, st.integers(0, 10**18 - 1))
def test_every_name_and_index_round_trips(name: str, index: int) -> None:
    assert KIMI_K2.parse_call_id(KIMI_K2.call_id(name, index)) == (name, index)


@given(st.text(max_size=40))
def test_whatever_parses_renders_back(text: str) -> None:
    try:
        name, index = KIMI_K2.parse_call_id(text)
    except InvalidRequest:
        return
    assert KIMI_K2.call_id(name, index) == text


@pytest.mark.parametrize(
    "call_id",
    ["", "search:2", "functions.f", "functions.f:", "functions.:0", "functions.f:07", "functions.f:-1", "functions.f:٣",
     "functions.f: 1", "functions.f:1 ", "call_abc", "functions_f_0", "Functions.f:0", "functions.f:" + "9" * 40],
)  # fmt: skip
def test_other_ids_are_refused(call_id: str) -> None:
    with pytest.raises(InvalidRequest, match="functions.NAME:INDEX"):
        KIMI_K2.parse_call_id(call_id)


@pytest.mark.parametrize("name", ["", "a\nb", "a\x00", "\ud800", *MARKER_TEXTS.values(), "a<|im_end|>b", "x[EOS]"])
def test_names_that_no_call_id_can_carry(name: str) -> None:
    assert KIMI_K2.name_problem(name)
    with pytest.raises(InvalidRequest):
        KIMI_K2.call_id(name, 0)


def test_markers_are_found_by_text() -> None:
    k2 = KIMI_K2.located_in({text: number for number, text in enumerate(MARKER_TEXTS.values())})
    assert (k2.section_begin, k2.stop_ids) == (0, (7, 8))
    assert k2.think_end == list(MARKER_TEXTS.values()).index("</think>")
    assert (k2.engine_stop, k2.argument_markers) == (k2.call_end, frozenset())
    k3 = formats.format_of(K3_TEXTS)
    assert (k3.name, k3.section_begin, k3.call_begin) == ("Kimi K3", 1, 1)
    assert (k3.section_end, k3.call_end, k3.think_end) == (2, 2, 2)
    assert (k3.argument_begin, k3.turn_end, k3.text_end, k3.think_begin) == (3, 4, 5, ABSENT)
    assert (k3.engine_stop, k3.argument_markers) == (5, frozenset({1, 2, 3}))


def test_a_vocabulary_without_a_marker_is_refused() -> None:
    with pytest.raises(FormatMismatch, match="tool_call_begin"):
        KIMI_K2.located_in({text: 1 for text in MARKER_TEXTS.values() if text != "<|tool_call_begin|>"})


@pytest.mark.parametrize("text", K3_TEXTS)
def test_a_vocabulary_of_neither_format_is_refused(text: str) -> None:
    with pytest.raises(FormatMismatch) as raised:
        formats.format_of({known: token_id for known, token_id in K3_TEXTS.items() if known != text})
    message = str(raised.value)
    assert "<|tool_call_begin|>" in message and "(Kimi K2)" in message
    assert f"{text} (Kimi K3)" in message
    assert all(known not in message.split("nor")[1] for known in K3_TEXTS if known != text)


def test_the_special_tokens_of_kimi_k3_are_the_checkpoints() -> None:
    named = json.loads(data("kimi_k3/special_tokens.json").read_text())
    ids = range(BASE_SIZE, BASE_SIZE + SPECIAL_COUNT)
    assert named == {str(each): SPECIAL_TOKENS.get(each - BASE_SIZE, reserved_text(each)) for each in ids}


def test_headers_are_escaped_and_indexes_count_from_one_in_kimi_k3() -> None:
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
    assert (vocabulary.format.name, set(vocabulary.special_tokens)) == ("Kimi K3", set(K3_TEXTS))
    assert vocabulary.size == 256 + len(K3_TEXTS)


def test_all_formats_allow_the_same_names() -> None:
    """Requests are read, and histories repaired, before the format is known."""
    assert {known.special_pattern for known in formats.FORMATS} == {KIMI_K2.special_pattern}
