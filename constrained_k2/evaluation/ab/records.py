"""What came back, one line of JSON an answer: written as it comes, read again to score."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from constrained_k2.errors import InvalidRequest
from constrained_k2.evaluation.ab.lines import MAX_LINE, bounded_lines

SUCCESS = "success"
"""The ``status`` of an answer that came whole, as the vendor verifier calls it; else it is ``failed``."""

FAILURES: Mapping[str, str] = {
    "connection": "no connection, or it was closed before an answer came",
    "timeout": "no whole answer within the time limit",
    "rate_limited": "429, to the last attempt",
    "server_error": "500 to 599, to the last attempt",
    "refused": "400 to 499, or another status that is no answer",
    "broken_stream": "the stream ended in the middle",
    "stream_error": "the server reported an error within the stream",
    "invalid_answer": "no chat completion: not JSON, fields of another type, no finish_reason",
    "too_long": "more than an answer may hold",
}
"""What can come instead of an answer."""

MAX_GAPS = 4096
"""How many gaps between tokens one record keeps."""


@dataclass(frozen=True, slots=True)
class Record:
    """One answer, or what came instead of one.

    Attributes:
        key: The sample's.
        repetition: From 0.
        status: ``success`` or ``failed``.
        failure: What went wrong, one of :data:`FAILURES`; empty for a success.
        error: The server's words, or the client's.
        attempts: How many times it was asked.
        finish_reason: The server's; empty if none came.
        content: The text.
        reasoning: The reasoning, where the server keeps it apart.
        calls: ``(id, name, arguments)`` of every tool call.
        raw: What the model wrote with its markers, where the server could tell and it was worth asking.
        prompt_tail: The end of the prompt as the model read it; the same.
        prompt_tokens: As the server counts; None where it does not.
        completion_tokens: The same.
        started: Seconds since 1970.
        ttft_ms: From the request of the last attempt to the first token (to the first delta that shows something,
            where the server names no tokens); None if none came.
        duration_ms: From the request of the last attempt to the end of its answer.
        gaps_ms: Between arrivals of tokens, at most :data:`MAX_GAPS` of them.
    """

    key: str
    repetition: int
    status: str
    failure: str = ""
    error: str = ""
    attempts: int = 1
    finish_reason: str = ""
    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str, str], ...] = ()
    raw: str = ""
    prompt_tail: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    started: float = 0.0
    ttft_ms: float | None = None
    duration_ms: float = 0.0
    gaps_ms: tuple[float, ...] = field(default=(), repr=False)

    def to_json(self) -> str:
        """One line, without its end; text that is no Unicode is escaped."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> "Record":
        """Read back :meth:`to_json`.

        Raises:
            ValueError: It is no record.
        """
        try:
            value = json.loads(text)
            calls = tuple((str(i), str(name), str(arguments)) for i, name, arguments in value.pop("calls"))
            record = cls(**value | {"calls": calls, "gaps_ms": tuple(map(float, value.pop("gaps_ms")))})
        except (TypeError, AttributeError, KeyError, RecursionError) as error:
            raise ValueError(f"is no record: {error}") from None
        if not isinstance(record.key, str) or type(record.repetition) is not int:
            raise ValueError("is no record: it names no sample")
        return record


class RecordFile:
    """An arm's records, appended to as they come.

    Every record is one write of one line, so a process that is killed leaves at most one torn line at the end. That one
    is cut off when the file is opened again, and its request is sent again.

    Args:
        path: The file; made if it is missing.

    Raises:
        InvalidRequest: It cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            self._cut_torn_line()
        except OSError as error:
            raise InvalidRequest(f"cannot be written: {error}", str(path)) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.fsync(self._file)
        os.close(self._file)

    def append(self, record: Record) -> None:
        """Write one record.

        Raises:
            OSError: The disk is full, or the like.
        """
        line = record.to_json().encode() + b"\n"
        if os.write(self._file, line) != len(line):
            raise OSError(f"{self.path}: only a part of a record could be written")

    def _cut_torn_line(self) -> None:
        size = end = os.fstat(self._file).st_size
        while end:
            start = max(0, end - (1 << 16))
            newline = os.pread(self._file, end - start, start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            os.ftruncate(self._file, end)


def read_records(path: Path) -> Iterator[Record | str]:
    """Every record of a file, in the order in which they came; for a line that is none, what is wrong with it.

    A last line without its end is left out: it was being written when the run ended.
    """
    if not path.exists():
        return
    for number, line in bounded_lines(path):
        if line is None:
            yield f"{path.name}:{number}: is longer than {MAX_LINE} bytes"
        elif line.endswith(b"\n"):
            try:
                yield Record.from_json(line)
            except ValueError as error:
                yield f"{path.name}:{number}: {error}"


def done_keys(path: Path, *, but_failed: bool = False) -> set[tuple[str, int]]:
    """``(key, repetition)`` of every record.

    Args:
        path: The arm's file.
        but_failed: Leave out those that failed, so that they are asked again.
    """
    done: set[tuple[str, int]] = set()
    for record in read_records(path):
        if isinstance(record, Record):
            if but_failed and record.status != SUCCESS:
                done.discard((record.key, record.repetition))
            else:
                done.add((record.key, record.repetition))
    return done
