"""A run's directory: what was asked, of whom, and what came, so that it can go on after any end.

``run.json``: the arms and how they are asked. ``samples.jsonl``: the samples as they are sent, one a line.
``records/ARM.jsonl``: what came. ``metrics.jsonl``: how servers' counters grew. ``report.md``, ``report.html``,
``scores.json``: made of these at any time.
"""

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from constrained_k2.errors import InvalidRequest
from constrained_k2.evaluation.ab.arms import Arm
from constrained_k2.evaluation.ab.loaders import BadLine
from constrained_k2.evaluation.ab.sample import Sample

MAX_BAD_LINES = 50
"""How many malformed lines a run keeps the words of."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How every sample is asked.

    Attributes:
        temperature: For all samples; None for each sample's own, or the server's.
        max_tokens: For samples that say nothing.
        repetitions: How often each sample is asked.
        seed: Of the first repetition's sampling; every sample and repetition has its own.
    """

    temperature: float | None = None
    max_tokens: int = 2048
    repetitions: int = 1
    seed: int = 0

    def body(self, sample: Sample, repetition: int) -> dict[str, Any]:
        """A sample's body with what it takes to sample it; the same for all arms."""
        body = dict(sample.body)
        if "max_completion_tokens" not in body:
            body.setdefault("max_tokens", self.max_tokens)
        if self.temperature is not None:
            body["temperature"] = self.temperature
        body["seed"] = (int(sample.key[:8], 16) + self.seed + repetition * 1_000_003) % (1 << 31)
        return body


@dataclass(slots=True)
class RunDirectory:
    """Where a run is kept.

    Attributes:
        path: The directory.
        source: What the samples were made of, for the report.
        sampling: How every sample is asked.
        samples: How many there are.
        bad_lines: Malformed lines of the source: how many, and what is wrong with the first.
        arms: Name -> what makes the arm (see :attr:`Arm.identity`), and where it was asked last.
    """

    path: Path
    source: str
    sampling: Sampling
    samples: int = 0
    bad_lines: tuple[int, tuple[str, ...]] = (0, ())
    arms: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def samples_path(self) -> Path:
        """The samples."""
        return self.path / "samples.jsonl"

    def records_path(self, arm: str) -> Path:
        """An arm's records."""
        return self.path / "records" / f"{arm}.jsonl"

    def read_samples(self) -> Iterator[Sample]:
        """The samples, one at a time."""
        with self.samples_path.open("rb") as file:
            for line in file:
                yield Sample.from_json(json.loads(line))

    def add_arms(self, arms: Iterable[Arm]) -> None:
        """Note who is asked.

        Raises:
            InvalidRequest: An arm of that name was asked otherwise before.
        """
        for arm in arms:
            before = self.arms.get(arm.name)
            if before is not None and {name: before.get(name) for name in arm.identity} != arm.identity:
                problem = f"was begun with {_shown(before)}, not {_shown(arm.identity)}"
                raise InvalidRequest(problem, f"arm {arm.name}", "Give it another name, or another --output")
            self.arms[arm.name] = arm.identity | {"url": arm.base_url}
        (self.path / "records").mkdir(exist_ok=True)
        self._write()

    def add_counters(self, url: str, counters: Mapping[str, float]) -> None:
        """Note how a server's counters grew."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"url": url, "counters": counters}) + "\n")

    def read_counters(self) -> dict[str, float]:
        """How counters grew, over all servers and stretches of the run."""
        path, sums = self.path / "metrics.jsonl", dict[str, float]()
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            try:
                counters = json.loads(line)["counters"]
            except (ValueError, KeyError, TypeError):
                continue  # the last line of a run that was killed
            for name, value in counters.items():
                sums[name] = sums.get(name, 0.0) + value
        return sums

    def _write(self) -> None:
        value = {
            "source": self.source,
            "sampling": {name: getattr(self.sampling, name) for name in Sampling.__slots__},
            "samples": self.samples,
            "bad_lines": {"count": self.bad_lines[0], "first": self.bad_lines[1]},
            "arms": self.arms,
        }
        _replace(self.path / "run.json", json.dumps(value, indent=2, ensure_ascii=True) + "\n")


def lock(path: Path) -> TextIO:
    """Keep other processes out of a directory until the file is closed, or this process ends in any way.

    Raises:
        InvalidRequest: Another one is at work in it, or it cannot be written.
    """
    try:
        file = (path / "lock").open("w")
    except OSError as error:
        raise InvalidRequest(f"cannot be written: {error}", str(path)) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise InvalidRequest("another run is at work in it", str(path), "Give another --output") from None
    return file


def begin(path: Path, source: str, samples: Iterable[Sample | BadLine], sampling: Sampling) -> RunDirectory:
    """Begin a run, or go on with the one that is in the directory.

    Args:
        path: The directory; made if it is missing.
        source: What the samples are made of, for the report.
        samples: The samples.
        sampling: How each is asked.

    Raises:
        InvalidRequest: The directory holds another run, there are no samples, or it cannot be written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with lock(path):
            return _begin(path, source, samples, sampling)
    except OSError as error:
        raise InvalidRequest(f"cannot be written: {error}", str(path)) from error


def _begin(path: Path, source: str, samples: Iterable[Sample | BadLine], sampling: Sampling) -> RunDirectory:
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
        problem = f"holds no sample; {bad} lines are malformed" + (f", such as {first[0]}" if first else "")
        raise InvalidRequest(problem, source)
    run = RunDirectory(path, source, sampling, count, (bad, tuple(first)))
    if (path / "run.json").exists():
        before = open_run(path)
        if before.sampling != sampling or not _same(fresh, before.samples_path):
            fresh.unlink()
            what = "sampling parameters" if before.sampling != sampling else "samples"
            remedy = "Go on with the same, or give another --output"
            raise InvalidRequest(f"holds a run with other {what}", str(path), remedy)
        run.arms = before.arms
    fresh.replace(run.samples_path)
    run._write()  # noqa: SLF001 - of this module
    return run


def open_run(path: Path) -> RunDirectory:
    """The run that is in a directory.

    Raises:
        InvalidRequest: There is none.
    """
    try:
        value = json.loads((path / "run.json").read_text(encoding="utf-8"))
        bad = value["bad_lines"]
        sampling = Sampling(**value["sampling"])
        lines = (bad["count"], tuple(bad["first"]))
        return RunDirectory(path, value["source"], sampling, value["samples"], lines, value["arms"])
    except OSError as error:
        raise InvalidRequest(f"holds no run: {error}", str(path)) from error
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(f"is no run of this version: {error!r}", str(path / "run.json")) from error


def _shown(identity: Mapping[str, Any]) -> str:
    return json.dumps({name: value for name, value in identity.items() if name != "url"})


def _same(first: Path, second: Path) -> bool:
    if first.stat().st_size != second.stat().st_size:
        return False
    with first.open("rb") as one, second.open("rb") as other:
        while block := one.read(1 << 20):
            if block != other.read(1 << 20):
                return False
    return True


def _replace(path: Path, text: str) -> None:
    """Write a file in one step: it is the old or the new one, whenever the process ends."""
    fresh = path.with_suffix(".new")
    with fresh.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
