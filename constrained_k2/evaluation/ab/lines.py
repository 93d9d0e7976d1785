"""Lines of files of any size, each bounded in memory."""

from collections.abc import Iterator
from pathlib import Path

MAX_LINE = 16 << 20
"""The longest line that is read, in bytes."""


def bounded_lines(path: Path) -> Iterator[tuple[int, bytes | None]]:
    """Number, from 1, and bytes of every line, its end included; None for one that is too long, which is passed over.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE):
            number += 1
            if len(line) < MAX_LINE or line.endswith(b"\n"):
                yield number, line
                continue
            while (rest := file.readline(MAX_LINE)) and not rest.endswith(b"\n"):
                pass
            yield number, None
