"""Kimi K2's call ids, names and markers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from constrained_k2 import KIMI_K2, FormatMismatch, InvalidRequest
from constrained_k2.formats.kimi_k2 import MARKER_TEXTS

names = st.text(min_size=1, max_size=40).filter(lambda name: not KIMI_K2.name_problem(name))


@pytest.mark.parametrize(
    ("call_id", "name", "index"),
    [
        ("functions.a.b:0", "a.b", 0),
        ("functions.get-weather:3", "get-weather", 3),
        ("functions.x:y:0", "x:y", 0),
        ("functions.查询:12", "查询", 12),
        ("functions.functions.f:1", "functions.f", 1),
        ("functions. :1", " ", 1),
        ("functions.x:0:0", "x:0", 0),
    ],
)
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
    shifted = {text: number for number, text in enumerate(MARKER_TEXTS.values())}
    found = KIMI_K2.located_in(shifted)
    assert found.section_begin == 0
    assert found.stop_ids == (7, 8)
    assert found.think_end == shifted["</think>"]


def test_a_vocabulary_without_a_marker_is_refused() -> None:
    with pytest.raises(FormatMismatch, match="tool_call_begin"):
        KIMI_K2.located_in({text: 1 for text in MARKER_TEXTS.values() if text != "<|tool_call_begin|>"})
