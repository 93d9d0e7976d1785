"""Stores an A/B run in a directory, so that it can resume and can be scored at any time.

``run.sqlite`` holds the arms, the sampling, the samples as they are sent, the answers and the growth of servers'
counters. Each answer is a transaction of its own, so a killed run loses none that had arrived.
"""

import fcntl
import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import msgspec

from constrained_k2.errors import InvalidRequest
from constrained_k2.evaluation.ab.arms import Arm
from constrained_k2.evaluation.ab.loaders import BadLine
from constrained_k2.evaluation.answer import SUCCESS, Record
from constrained_k2.evaluation.sample import Sample, key_of
from constrained_k2.explain.view import WantedToken
from constrained_k2.formats import FORMATS
from constrained_k2.formats.base import WireFormat
from constrained_k2.formats.kimi_k2 import KIMI_K2

FILE = "run.sqlite"
MAX_BAD_LINES = 50  # malformed lines whose errors are stored

_TABLES = """
    create table if not exists run (value text not null);
    create table if not exists samples (number integer primary key, key text not null unique, sample text not null);
    create table if not exists records (
        arm text, key text, repetition integer, status text, record text not null, primary key (arm, key, repetition));
    create table if not exists changes (arm text, key text, change text not null, primary key (arm, key));
    create table if not exists counters (counters text not null);
    create temp table fresh (number integer primary key, key text not null unique, sample text not null);
"""
_NOT_STORED = {"path", "database"}  # the fields of a run that its own row does not hold


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


@dataclass(frozen=True, slots=True)
class Change:
    """Two greedy answers to a sample: constrained and unconstrained."""

    arm: str
    key: str  # the sample's
    constrained: Record
    unconstrained: Record
    overrides: tuple[WantedToken, ...] | None = None  # of the constrained answer
    examined: int = 0  # of its tokens
    constrained_logprobs: tuple[float, ...] = ()  # of its tokens, under the unconstrained model; empty if not known
    error: str = ""  # why a part is missing
    chances: tuple[float, ...] = ()  # of each call that was begun, as in :class:`TurnView`

    @property
    def is_whole(self) -> bool:
        """True if both answers came and the overrides are known."""
        return self.constrained.status == self.unconstrained.status == SUCCESS and self.overrides is not None


@dataclass(slots=True)
class RunDirectory:
    """A run; :func:`begin` and :func:`open_run` make one. What reads and writes it raises ``sqlite3.Error``."""

    path: Path
    database: sqlite3.Connection = field(repr=False, compare=False)
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
        raise InvalidRequest(problem, str(self.path), f"Use {' or '.join(each.name for each in FORMATS)}")

    @property
    def answers(self) -> int:
        """The answers of an arm in a complete run."""
        return self.samples * self.sampling.repetitions

    def read_samples(self) -> Iterator[Sample]:
        """The samples in the order of their source."""
        for (text,) in self.database.execute("select sample from samples order by number"):
            yield Sample.from_json(json.loads(text))

    def sample(self, key: str) -> Sample:
        """The sample with this key; raises ``KeyError`` without one."""
        found = self.database.execute("select sample from samples where key = ?", (key,)).fetchone()
        if found is None:
            raise KeyError(key)
        return Sample.from_json(json.loads(found[0]))

    def add_arms(self, arms: Iterable[Arm]) -> None:
        """Store the arms; raises ``InvalidRequest`` if the run has one of that name with another identity."""
        for arm in arms:
            before = {name: value for name, value in self.arms.get(arm.name, {}).items() if name != "url"}
            if before and before != arm.identity:
                problem = f"the run has this arm with {json.dumps(before)}, not {json.dumps(arm.identity)}"
                raise InvalidRequest(problem, f"arm {arm.name}", "Give it another name, or another --output")
            self.arms[arm.name] = arm.identity | {"url": arm.url}
        self.write()

    def add(self, arm: str, record: Record) -> None:
        """Store an answer, in place of an earlier one to the same request."""
        row = (arm, record.key, record.repetition, record.status, _text(record))
        self.database.execute("insert or replace into records values (?, ?, ?, ?, ?)", row)

    def records(self, arm: str) -> Iterator[Record]:
        """An arm's answers, in the order in which they came."""
        for (text,) in self.database.execute("select record from records where arm = ? order by rowid", (arm,)):
            yield msgspec.convert(json.loads(text), Record)

    def record(self, arm: str, key: str, repetition: int) -> Record | None:
        """An arm's answer to one request."""
        found = self.database.execute(
            "select record from records where (arm, key, repetition) = (?, ?, ?)", (arm, key, repetition)
        ).fetchone()
        return None if found is None else msgspec.convert(json.loads(found[0]), Record)

    def done_keys(self, arm: str, *, but_failed: bool = False) -> set[tuple[str, int]]:
        """``(key, repetition)`` of an arm's answers, ``but_failed`` without the failures."""
        rows = self.database.execute("select key, repetition, status from records where arm = ?", (arm,))
        return {(key, repetition) for key, repetition, status in rows if not but_failed or status == SUCCESS}

    def add_change(self, change: Change) -> None:
        """Store what the constraint changed in an arm's answer to a sample."""
        row = (change.arm, change.key, _text(change))
        self.database.execute("insert or replace into changes values (?, ?, ?)", row)

    def changes(self) -> Iterator[Change]:
        """The changes, in the order in which they came."""
        for (text,) in self.database.execute("select change from changes order by rowid"):
            yield msgspec.convert(json.loads(text), Change)

    def add_counters(self, counters: Mapping[str, float]) -> None:
        """Store the growth of a server's counters during a part of the run."""
        self.database.execute("insert into counters values (?)", (json.dumps(counters),))

    def read_counters(self) -> dict[str, float]:
        """The growth of counters, summed over servers and parts of the run."""
        sums = Counter[str]()
        for (text,) in self.database.execute("select counters from counters"):
            sums.update(json.loads(text))
        return {name: float(value) for name, value in sums.items()}

    def write(self) -> None:
        """Store the run's own row."""
        value = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in _NOT_STORED}
        text = json.dumps(value | {"sampling": asdict(self.sampling)})
        with _transaction(self.database):
            self.database.execute("delete from run")
            self.database.execute("insert into run values (?)", (text,))


def _text(value: object) -> str:
    """JSON; all but ASCII is escaped, since text may hold lone surrogates."""
    return json.dumps(msgspec.to_builtins(value))


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
    path: Path, source: str, samples: Iterable[Sample | BadLine], sampling: Sampling, wire_format: WireFormat = KIMI_K2
) -> RunDirectory:
    """Begin a run, or resume the one in the directory; raises ``InvalidRequest`` if it holds another run.

    Repeated requests get distinct keys.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with lock(path):
            database = _connect(path)
            count, bad, first, seen = 0, 0, list[str](), Counter[str]()
            with _transaction(database):
                for sample in samples:
                    if isinstance(sample, BadLine):
                        bad += 1
                        first += [str(sample)] * (len(first) < MAX_BAD_LINES)
                    else:
                        key = key_of(sample.body, seen[sample.key]) if seen[sample.key] else sample.key
                        row = (count, key, json.dumps(replace(sample, key=key).to_json()))
                        database.execute("insert into fresh values (?, ?, ?)", row)
                        seen[sample.key] += 1
                        count += 1
            if not count:
                example = f", such as {first[0]}" if first else ""
                raise InvalidRequest(f"no samples, {bad} malformed lines{example}", source)
            run = RunDirectory(path, database, source, sampling, count, (bad, tuple(first)), {}, wire_format.name)
            if database.execute("select 1 from run").fetchone():
                before = _read(path, database)
                if what := _difference(run, before):
                    remedy = "Resume with the same, or give another --output"
                    raise InvalidRequest(f"holds a run with other {what}", str(path), remedy)
                run.arms = before.arms
            else:
                database.execute("delete from samples")  # of a run that ended right here
                database.execute("insert into samples select * from fresh")
            database.execute("delete from fresh")
            run.write()
            return run
    except (OSError, sqlite3.Error) as error:
        raise InvalidRequest(f"cannot be written: {error}", str(path)) from error


def open_run(path: Path) -> RunDirectory:
    """The run in a directory; raises ``InvalidRequest`` if there is none."""
    if not (path / FILE).exists():
        raise InvalidRequest(f"holds no run: no {FILE}", str(path))
    try:
        return _read(path, _connect(path))
    except (sqlite3.Error, ValueError, TypeError, KeyError) as error:
        raise InvalidRequest(f"not a run of this version: {error}", str(path / FILE)) from error


def _connect(path: Path) -> sqlite3.Connection:
    """The database, whose statements are each a transaction: what is written stays if this process is killed."""
    database = sqlite3.connect(path / FILE, isolation_level=None)
    database.execute("pragma journal_mode = wal")
    database.execute("pragma synchronous = normal")
    database.executescript(_TABLES)
    return database


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    database.execute("begin immediate")
    try:
        yield
    except BaseException:
        database.execute("rollback")
        raise
    database.execute("commit")


def _read(path: Path, database: sqlite3.Connection) -> RunDirectory:
    row = database.execute("select value from run").fetchone()
    if row is None:
        raise ValueError("its samples were never stored")
    value = json.loads(row[0])
    value["sampling"] = msgspec.convert(value["sampling"], Sampling)
    count, first = value.pop("bad_lines")
    return RunDirectory(path, database, bad_lines=(count, tuple(first)), **value)


def _difference(run: RunDirectory, before: RunDirectory) -> str:
    """The difference that forbids resuming a run with the fresh samples; empty if there is none."""
    if before.model_family != run.model_family:
        return "models"
    if before.sampling != run.sampling:
        return "sampling parameters"
    other = "select 1 from (select * from fresh except select * from samples) limit 1"
    is_other = before.samples != run.samples or run.database.execute(other).fetchone()
    return "samples" if is_other else ""
