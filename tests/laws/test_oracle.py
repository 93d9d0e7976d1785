"""The oracle sees what differs between two records."""

import json
import sqlite3
import zlib
from pathlib import Path

import pytest

from tests.kit.data import data
from tests.laws.oracle import Found, differences, main, record


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for needed in (
        "kimi_k2/tokenizer",
        *(f"schemas/{name}" for name in ("maskbench.jsonl.xz", "mcp-tools", "json-schema-test-suite")),
    ):
        data(needed)
    path = tmp_path_factory.mktemp("oracle") / "first.sqlite"
    record(path, processes=1, limit=2)
    return path


@pytest.mark.slow
def test_equal_trees_are_equal(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path / "again.sqlite", processes=2, limit=2)
    assert main(["compare", str(recorded), str(tmp_path / "again.sqlite")]) == 0
    assert "12 schemas compared; differences: none" in capsys.readouterr().out
    with sqlite3.connect(recorded) as database:
        walks = [json.loads(zlib.decompress(blob)) for (blob,) in database.execute("select walks from found")]
    assert sum(len(walk) for found in walks for walk in found.values()) > 500  # masks


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("update found set coverage = replace(coverage, 'enforced', 'relaxed') where rowid = 1", "1 coverage"),
        ("update found set text = text || 'x' where rowid = 3", "1 text"),
        ("delete from found where rowid = 2", "1 only in the first"),
    ],
)
def test_a_difference_is_named(
    recorded: Path, tmp_path: Path, change: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.sqlite"
    other.write_bytes(recorded.read_bytes())
    with sqlite3.connect(other) as database:
        database.execute(change)
    assert main(["compare", str(recorded), str(other)]) == 1
    assert said in capsys.readouterr().out


def test_a_mask_that_differs_is_named() -> None:
    before = Found("", "", {"walk 0": [(5, "aa", 3), (6, "bb", 4)]})
    (found,) = differences("s", before, Found("", "", {"walk 0": [(5, "aa", 3), (6, "bc", 4)]}))
    assert found[0] == "masks"
    assert "after the tokens [5]" in found[1]
