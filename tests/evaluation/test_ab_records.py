"""Record files: what is damaged costs itself only, and whatever is written can be read."""

from dataclasses import replace
from pathlib import Path

import pytest

from constrained_k2.evaluation.ab.directory import MAX_LINE, RecordFile, done_keys, read_records
from constrained_k2.evaluation.ab.runner import _RAW_TEXT, Limits
from constrained_k2.evaluation.answer import MAX_ERROR, MAX_GAPS, SUCCESS, Record
from tests.evaluation.fake_endpoint import GOOD_CALL


def test_records_of_any_shape(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    good = Record("k", 1, SUCCESS, content="\ud800 \u2028 \n <|im_end|>", calls=(GOOD_CALL,), gaps_ms=(0.5,))
    with RecordFile(path) as file:
        file.append(good)
    damaged = [
        b"{}",
        b"[]",
        b"null",
        b"\xff",
        b'{"key": 1, "repetition": 0, "calls": [], "gaps_ms": []}',
        b"[" * 99_999,
    ]
    path.write_bytes(path.read_bytes() + b"\n".join(damaged) + b"\n" + good.to_json().encode()[:50])
    found = list(read_records(path))
    assert found[0] == good
    assert [type(record) for record in found[1:]] == [str] * 6
    assert done_keys(path) == {("k", 1)}
    with RecordFile(path) as file:
        file.append(replace(good, repetition=2))
    assert done_keys(path) == {("k", 1), ("k", 2)}


def test_a_line_that_is_too_long_costs_itself_only(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    good = Record("k", 0, SUCCESS).to_json().encode()
    path.write_bytes(good + b"\n" + b"x" * (2 * MAX_LINE + 7) + b"\n" + good)
    assert [str(record) for record in read_records(path)][1:] == [f"a.jsonl:2: longer than {MAX_LINE} bytes"]
    path.write_bytes(path.read_bytes() + b"\n")
    assert list(read_records(path))[0::2] == [Record("k", 0, SUCCESS)] * 2


def test_the_longest_answer_fits_a_line_of_its_file() -> None:
    widest = "\U0001f600"  # escaped, twelve bytes for one character
    record = Record("k", 0, SUCCESS, content=widest * Limits().text, gaps_ms=(123456.78,) * MAX_GAPS)
    record = replace(record, raw=widest * _RAW_TEXT, prompt_tail=widest * _RAW_TEXT, error=widest * MAX_ERROR)
    assert len(record.to_json()) < MAX_LINE


@pytest.mark.parametrize("size", [0, 10, 1 << 16, (1 << 16) + 7, 3 << 16])
def test_a_torn_line_of_any_length_is_cut_off(size: int, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for before in (b"", b"{}\n"):
        path.write_bytes(before + b"x" * size)
        with RecordFile(path):
            pass
        assert path.read_bytes() == before
