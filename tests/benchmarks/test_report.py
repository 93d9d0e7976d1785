"""Tables and checks as Markdown."""

import pytest

from benchmarks.report import Report, number, table


def test_numbers_and_tables() -> None:
    assert [number(cell) for cell in (0.0, 3, 12_345, 99.96, 123.4, "x|y", None)] == [
        "0", "3", "12,345", "100", "123", "x\\|y", "",
    ]  # fmt: skip
    assert table(("", "a"), [("row", 1.5)]) == "|  | a |\n|---|--:|\n| row | 1.5 |"
    with pytest.raises(ValueError, match="1 cells: expected 2"):
        table(("", "a"), [("row",)])


def test_checks_that_fail_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report()
    report.check("equal", passed=True, note="3 launches")
    report.check("same", passed=False, note="row 3")
    assert report.failed == ["same: row 3"]
    assert capsys.readouterr().out == "* ok: equal (3 launches)\n* **WRONG**: same (row 3)\n"
