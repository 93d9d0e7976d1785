"""A run's directory, from which it resumes after any interruption, and from which it is scored at any time.

``run.json``: the arms and the sampling. ``samples.jsonl``: the samples as they are sent. ``records/ARM.jsonl``: the
answers. ``metrics.jsonl``: the growth of servers' counters.
"""

import fcntl
import filecmp
import json
import mmap
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, TextIO

import msgspec

from constrained_k2.errors import InvalidRequest
from constrained_k2.evaluation.ab.arms import Arm
from constrained_k2.evaluation.answer import SUCCESS, Record
from constrained_k2.evaluation.sample import Sample
from constrained_k2.formats import FORMATS
from constrained_k2.formats.base import WireFormat
from constrained_k2.formats.kimi_k2 import KIMI_K2

MAX_BAD_LINES = 50  # malformed lines whose errors are stored
MAX_LINE = 16 << 20  # the longest line that is read, in bytes


class BadLine(NamedTuple):
    """A line of a sample file that could not be read."""

    line: int  # its number, from 1
    reason: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling parameters of a run, equal in all arms."""

    temperature: float | None = None  # for all samples; None for each sample's own, or the server's
    max_tokens: int = 2048  # for samples without a limit
    repetitions: int = 1
    seed: int = 0  # base of the sampling seeds; every sample and repetition has its own

    def body(self, sample: Sample, repetition: int) -> dict[str, Any]:
        """A sample's body with sampling parameters, equal in all arms."""
        body = dict(sample.body)
        if "max_completion_tokens" not in body:
            body.setdefault("max_tokens", self.max_tokens)
        if self.temperature is not None:
            body["temperature"] = self.temperature
        body["seed"] = (int(sample.key[:8], 16) + self.seed + repetition * 1_000_003) % (1 << 31)
        return body


@dataclass(slots=True)
class RunDirectory:
    """A run; :func:`begin` and :func:`open_run` make one. All but ``path`` is the content of ``run.json``."""

    path: Path
    source: str  # of the samples, for the report
    sampling: Sampling
    samples: int = 0  # how many
    bad_lines: tuple[int, tuple[str, ...]] = (0, ())  # how many lines of the source are malformed, and the first errors
    arms: dict[str, dict[str, Any]] = field(default_factory=dict)  # name -> its identity and its last address
    model_family: str = KIMI_K2.name  # of all arms; the name of a wire format

    @property
    def wire_format(self) -> WireFormat:
        """The wire format of the models; raises ``InvalidRequest`` if it is unknown."""
        for known in FORMATS:
            if known.name == self.model_family:
                return known
        problem = f"unknown model family {self.model_family!r}"
        raise InvalidRequest(problem, str(self.path / "run.json"), f"Use {' or '.join(each.name for each in FORMATS)}")

    @property
    def answers(self) -> int:
        """The answers of an arm in a complete run."""
        return self.samples * self.sampling.repetitions

    @property
    def samples_path(self) -> Path:
        """One line of JSON a sample."""
        return self.path / "samples.jsonl"

    def records_path(self, arm: str) -> Path:
        """An arm's answers; missing until :meth:`add_arms`. Check names from outside first: they become file names."""
        return self.path / "records" / f"{arm}.jsonl"

    @property
    def changes_path(self) -> Path:
        """The answers that were asked for again, for what the constraint changed; missing without any."""
        return self.path / "changes.jsonl"

    def read_samples(self) -> Iterator[Sample]:
        """The samples in the order of their source; raises ``OSError`` if the file is missing."""
        with self.samples_path.open("rb") as file:
            for line in file:
                yield Sample.from_json(json.loads(line))

    def add_arms(self, arms: Iterable[Arm]) -> None:
        """Store the arms; raises ``InvalidRequest`` if the run has one of that name with another identity."""
        for arm in arms:
            before = {name: value for name, value in self.arms.get(arm.name, {}).items() if name != "url"}
            if before and before != arm.identity:
                problem = f"the run has this arm with {json.dumps(before)}, not {json.dumps(arm.identity)}"
                raise InvalidRequest(problem, f"arm {arm.name}", "Give it another name, or another --output")
            self.arms[arm.name] = arm.identity | {"url": arm.url}
        (self.path / "records").mkdir(exist_ok=True)
        self.write()

    def add_counters(self, url: str, counters: Mapping[str, float]) -> None:
        """Append the growth of a server's counters during a part of the run; raises ``OSError``, as on a full disk."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"url": url, "counters": counters}) + "\n")

    def read_counters(self) -> dict[str, float]:
        """The growth of counters, summed over servers and parts of the run."""
        path, sums = self.path / "metrics.jsonl", Counter[str]()
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            with suppress(ValueError, KeyError, TypeError):  # the last line of a killed run
                sums.update(json.loads(line)["counters"])
        return {name: float(value) for name, value in sums.items()}

    def write(self) -> None:
        """Write ``run.json`` atomically: whenever the process ends, it is the old or the new one."""
        fresh, value = self.path / "run.new", asdict(self)
        del value["path"]
        value["bad_lines"] = dict(zip(("count", "first"), self.bad_lines, strict=True))
        with fresh.open("w", encoding="utf-8") as file:
            file.write(json.dumps(value, indent=2, ensure_ascii=True) + "\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self.path / "run.json")


def lock(path: Path) -> TextIO:
    """Lock a directory until the file is closed or this process ends; raises ``InvalidRequest`` if another has it."""
    try:
        file = (path / "lock").open("w")
    except OSError as error:
        raise InvalidRequest(f"cannot be written: {error}", str(path)) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise InvalidRequest("another run is using it", str(path), "Give another --output") from None
    return file


def begin(
    path: Path,
    source: str,
    samples: Iterable[Sample | BadLine],
    sampling: Sampling,
    wire_format: WireFormat = KIMI_K2,
) -> RunDirectory:
    """Begin a run, or resume the one in the directory; raises ``InvalidRequest`` if it holds another run."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with lock(path):
            fresh = path / "samples.jsonl.new"
            count, bad, first = 0, 0, list[str]()
            with fresh.open("w", encoding="utf-8") as file:
                for sample in samples:
                    if isinstance(sample, BadLine):
                        bad += 1
                        first += [str(sample)] * (len(first) < MAX_BAD_LINES)
                    else:
                        count += 1
                        file.write(json.dumps(sample.to_json()) + "\n")
            if not count:
                example = f", such as {first[0]}" if first else ""
                raise InvalidRequest(f"no samples, {bad} malformed lines{example}", source)
            run = RunDirectory(path, source, sampling, count, (bad, tuple(first)), model_family=wire_format.name)
            if (path / "run.json").exists():
                before = open_run(path)
                if what := _difference(run, before, fresh):
                    fresh.unlink()
                    remedy = "Resume with the same, or give another --output"
                    raise InvalidRequest(f"holds a run with other {what}", str(path), remedy)
                run.arms = before.arms
            fresh.replace(run.samples_path)
            run.write()
            return run
    except OSError as error:
        raise InvalidRequest(f"cannot be written: {error}", str(path)) from error


def _difference(run: RunDirectory, before: RunDirectory, samples: Path) -> str:
    """The difference that forbids resuming a run with these samples; empty if there is none."""
    if before.model_family != run.model_family:
        return "models"
    if before.sampling != run.sampling:
        return "sampling parameters"
    return "" if filecmp.cmp(samples, before.samples_path, shallow=False) else "samples"


def open_run(path: Path) -> RunDirectory:
    """The run in a directory; raises ``InvalidRequest`` if there is none."""
    try:
        value = json.loads((path / "run.json").read_text(encoding="utf-8"))
        value |= {"path": str(path), "bad_lines": (value["bad_lines"]["count"], value["bad_lines"]["first"])}
        return msgspec.convert(value, RunDirectory, dec_hook=lambda _, text: Path(text))
    except OSError as error:
        raise InvalidRequest(f"holds no run: {error}", str(path)) from error
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidRequest(f"not a run of this version: {error}", str(path / "run.json")) from error


class _Writable(Protocol):
    def to_json(self) -> str: ...


class RecordFile:
    """Appends records to a file, which is created if it is missing.

    Each record is one write of one line, so a killed process leaves at most one torn line at the end. Opening the file
    again removes that line, and its request is sent again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            if os.fstat(self._file).st_size:
                with mmap.mmap(self._file, 0, access=mmap.ACCESS_READ) as data:
                    end = data.rfind(b"\n") + 1
                os.ftruncate(self._file, end)
        except OSError as error:
            raise InvalidRequest(f"cannot be written: {error}", str(path)) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.fsync(self._file)
        os.close(self._file)

    def append(self, record: _Writable) -> None:
        """Write one record; raises ``OSError``, for example on a full disk."""
        line = record.to_json().encode() + b"\n"
        if os.write(self._file, line) != len(line):
            raise OSError(f"{self.path}: only a part of a record was written")


def read_records(path: Path) -> Iterator[Record | str]:
    """The records of a file; for a malformed line, what is wrong with it. A last line without its end is skipped."""
    for number, line in bounded_lines(path) if path.exists() else ():
        if line is None:
            yield f"{path.name}:{number}: longer than {MAX_LINE} bytes"
        elif line.endswith(b"\n"):
            try:
                yield Record.from_json(line)
            except ValueError as error:
                yield f"{path.name}:{number}: {error}"


def done_keys(path: Path, *, but_failed: bool = False) -> set[tuple[str, int]]:
    """``(key, repetition)`` of a file's records, ``but_failed`` without requests whose last record is a failure."""
    done: set[tuple[str, int]] = set()
    for record in read_records(path):
        if isinstance(record, Record):
            is_done = not but_failed or record.status == SUCCESS
            (done.add if is_done else done.discard)((record.key, record.repetition))
    return done


def bounded_lines(path: Path) -> Iterator[tuple[int, bytes | None]]:
    """Number, from 1, and bytes of every line, its end included; None in place of a line over :data:`MAX_LINE`."""
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE), b""), 1):
            if len(line) < MAX_LINE or line.endswith(b"\n"):
                yield number, line
                continue
            while (rest := file.readline(MAX_LINE)) and not rest.endswith(b"\n"):
                pass
            yield number, None
