"""A table of a report, as plain text."""

import math
from typing import NamedTuple

DASH = "\u2013"  # in a cell: there is no figure
Row = tuple[str, ...]  # A title and its cells, as plain text


class Table(NamedTuple):
    """A table of a report; its text is not escaped."""

    title: str
    columns: Row  # titles of all columns but the first, which holds the rows' titles
    rows: tuple[Row, ...]
    note: str = ""  # how to read it
    holds_text: bool = False  # True if its cells are words, which may wrap, rather than figures
    is_long: bool = False  # True if a page may fold it away


def percent(share: float | None) -> str:
    """A share (0 to 1) as a percentage; a dash for None and NaN."""
    return DASH if share is None or math.isnan(share) else f"{share:.1%}"
