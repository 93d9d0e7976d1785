"""The arms: our grammars on both engines, and the engines' builtin JSON Schema converters, each in its own process.

Some converters never finish on some schemas, and native code cannot be interrupted, so a process that takes too long is
killed and restarted.
"""

import gc
import json
import multiprocessing
import os
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, Self

from benchmarks.schemas.corpora import Case

ArmName = Literal["ours, llguidance", "ours, xgrammar", "llguidance's builtin", "xgrammar's builtin"]
ARMS: tuple[ArmName, ...] = ("ours, llguidance", "ours, xgrammar", "llguidance's builtin", "xgrammar's builtin")


@dataclass(frozen=True, slots=True)
class Work:
    """One schema for an arm.

    Attributes:
        schema: JSON text.
        instances: JSON texts to check.
        timed: JSON texts whose masks are timed, token by token.
        weighed: True to measure memory, which makes compilation slower.
    """

    schema: str
    instances: tuple[str, ...] = ()
    timed: tuple[str, ...] = ()
    weighed: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """An arm's result for a schema.

    Attributes:
        refusal: Why there is no grammar; empty if there is one.
        relaxed: Keywords that are not enforced, as reported by the arm.
        accepted: For each instance, True if it was accepted.
        create_ms: Time to build the grammar and a first matcher.
        mask_us: Time of each mask of the timed texts that were fully accepted.
        memory_mb: Growth of the process, if measured.
    """

    refusal: str = ""
    relaxed: tuple[str, ...] = ()
    accepted: tuple[bool, ...] = ()
    create_ms: float = 0.0
    mask_us: tuple[float, ...] = field(default=(), repr=False)
    memory_mb: float = 0.0

    def accepts_invalid(self, case: Case) -> bool:
        """True if an invalid instance was accepted."""
        return any(
            accepted and not instance.valid for instance, accepted in zip(case.instances, self.accepted, strict=False)
        )


class Arm:
    """An arm in a process of its own.

    Args:
        name: The arm.
        tokenizer: A Kimi tokenizer's directory; None for a vocabulary of the 256 bytes.
        seconds: Time limit for one schema.
    """

    def __init__(self, name: ArmName, tokenizer: Path | None, seconds: float = 20.0) -> None:
        self.name = name
        self._tokenizer = tokenizer
        self._seconds = seconds
        self._process: Any = None
        self._pipe: Connection | None = None

    def __enter__(self) -> Self:
        """Start the process."""
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the process."""
        self._end()

    def run(self, work: Work) -> Outcome:
        """Compile a schema and check its instances."""
        assert self._pipe is not None
        self._pipe.send(work)
        if self._pipe.poll(self._seconds):
            try:
                outcome: Outcome = self._pipe.recv()
            except EOFError:
                outcome = Outcome(refusal="the process died")
            else:
                return outcome
        else:
            outcome = Outcome(refusal=f"not done after {self._seconds:.0f} s", create_ms=self._seconds * 1000)
        self._end()
        self._start()
        return outcome

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self.name, self._tokenizer), daemon=True)
        self._process.start()
        theirs.close()
        if not self._pipe.poll(180):
            raise RuntimeError(f"{self.name} does not start")
        self._pipe.recv()

    def _end(self) -> None:
        self._process.kill()
        self._process.join()
        if self._pipe is not None:
            self._pipe.close()


def _serve(pipe: Connection, name: ArmName, tokenizer: Path | None) -> None:
    """Run the arm's process."""
    from constrained_k2.vocabulary.bitmask import allocate_bitmask
    from constrained_k2.vocabulary.vocabulary import Vocabulary

    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # hides xgrammar's warnings, one for each keyword that it drops
    vocabulary = Vocabulary.of_bytes() if tokenizer is None else Vocabulary.from_pretrained(tokenizer)
    compile_schema = _compiler(name, vocabulary)
    row = allocate_bitmask(1, vocabulary.size)[0]
    compile_schema('{"type":"object"}').matcher("").fill(row)
    pipe.send("ready")
    while True:
        try:
            work: Work = pipe.recv()
        except EOFError:
            return
        before = _reset_peak() if work.weighed else 0.0
        start = time.perf_counter()
        try:
            grammar = compile_schema(work.schema)
            grammar.matcher("")
        except Exception as error:  # noqa: BLE001 - any error counts as a refusal
            created = (time.perf_counter() - start) * 1000
            refusal = str(error).strip().splitlines()[:1] or [type(error).__name__]
            grown = _megabytes("VmHWM") - before if work.weighed else 0.0
            pipe.send(Outcome(refusal=refusal[0][:300], create_ms=created, memory_mb=grown))
            continue
        created = (time.perf_counter() - start) * 1000
        coverage = getattr(grammar, "coverage", None)
        relaxed = tuple(f"{use.pointer}: {use.reason}" for use in coverage.relaxed) if coverage else ()
        grown = _megabytes("VmHWM") - before if work.weighed else 0.0
        accepted = tuple(_accepts(grammar, vocabulary, text) for text in work.instances)
        masks = [sample for text in work.timed for sample in _mask_times(grammar, vocabulary, row, text)]
        pipe.send(Outcome("", relaxed, accepted, created, tuple(masks), grown))


def _reset_peak() -> float:
    """Reset the process's peak memory, and return its current memory in MB (Linux only)."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return _megabytes("VmRSS")


def _megabytes(field_name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field_name}:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _compiler(name: ArmName, vocabulary: Any) -> Any:
    from benchmarks.baselines import json_schema as builtin
    from constrained_k2.engines.llguidance.engine import LLGuidanceEngine

    if name == "ours, llguidance":
        return _bounded(LLGuidanceEngine(vocabulary).compile)
    if name == "ours, xgrammar":
        from constrained_k2.engines.xgrammar.engine import XGrammarEngine

        return _bounded(XGrammarEngine(vocabulary).compile)
    if name == "llguidance's builtin":
        return builtin.LLGuidanceBuiltin(vocabulary).compile
    return builtin.XGrammarBuiltin(vocabulary).compile


def _bounded(compile_schema: Any) -> Any:
    """Check budgets like :class:`constrained_k2.Compiler`, for any schema rather than objects only."""
    from constrained_k2.errors import UnsupportedSchema
    from constrained_k2.schema.budget import check_budget
    from constrained_k2.schema.compile_pool import run_bounded

    def bounded(schema: str) -> Any:
        try:
            check_budget(json.loads(schema))
        except RecursionError:
            raise UnsupportedSchema("the schema is nested too deeply to be read") from None
        return run_bounded(lambda: compile_schema(schema), None)

    return bounded


def _accepts(grammar: Any, vocabulary: Any, text: str) -> bool:
    matcher = grammar.matcher("")
    return all(map(matcher.accept, vocabulary.encode(text))) and matcher.is_complete()


def _mask_times(grammar: Any, vocabulary: Any, row: Any, text: str) -> list[float]:
    """Return the microseconds of each mask while a text is written; empty if it is not accepted."""
    matcher = grammar.matcher("")
    times = []
    for token_id in vocabulary.encode(text):
        start = time.perf_counter()
        matcher.fill(row)
        times.append((time.perf_counter() - start) * 1e6)
        if not matcher.accept(token_id):
            return []
    return times if matcher.is_complete() else []
