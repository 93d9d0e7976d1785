"""What is compared: our grammars on both engines, and the engines' own JSON Schema converters, each in a process.

Some converters never end on some schemas and native code cannot be interrupted, so an arm that takes too long is ended
and started anew.
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

from constrained_k2.evaluation.schemas.corpora import Case

ArmName = Literal["ours, llguidance", "ours, xgrammar", "llguidance's own", "xgrammar's own"]
ARMS: tuple[ArmName, ...] = ("ours, llguidance", "ours, xgrammar", "llguidance's own", "xgrammar's own")


@dataclass(frozen=True, slots=True)
class Work:
    """One schema for an arm.

    Attributes:
        schema: JSON text.
        instances: JSON texts to be accepted or not.
        timed: JSON texts whose masks are timed, a token at a time.
        weighed: Whether to measure memory, which makes the time that it takes to create the grammar longer.
    """

    schema: str
    instances: tuple[str, ...] = ()
    timed: tuple[str, ...] = ()
    weighed: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an arm made of it.

    Attributes:
        refusal: Why there is no grammar; empty if there is one.
        relaxed: Keywords that are not kept, as far as the arm says.
        accepted: For each instance.
        create_ms: To build the grammar and a first matcher.
        mask_us: Each mask of the timed texts that were accepted to their ends.
        memory_mb: What the process grew by, where that was asked for.
    """

    refusal: str = ""
    relaxed: tuple[str, ...] = ()
    accepted: tuple[bool, ...] = ()
    create_ms: float = 0.0
    mask_us: tuple[float, ...] = field(default=(), repr=False)
    memory_mb: float = 0.0

    def accepts_invalid(self, case: Case) -> bool:
        """Whether an instance that the schema rejects is accepted."""
        return any(
            accepted and not instance.valid for instance, accepted in zip(case.instances, self.accepted, strict=False)
        )


class Arm:
    """An arm in a process of its own.

    Args:
        name: Which.
        tokenizer: A Kimi tokenizer's directory; None for a vocabulary of the 256 bytes.
        seconds: How long one schema may take.
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
        """End the process."""
        self._end()

    def run(self, work: Work) -> Outcome:
        """Have a schema compiled and tried."""
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
    """The arm's process."""
    from constrained_k2.bitmask import allocate_bitmask
    from constrained_k2.vocabulary import Vocabulary

    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # xgrammar's warnings, one a keyword that it drops
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
        except Exception as error:  # noqa: BLE001 - whatever an arm says is its refusal
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
    """Begin to measure the process's peak memory anew; what it holds now. For Linux."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return _megabytes("VmRSS")


def _megabytes(field_name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field_name}:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _compiler(name: ArmName, vocabulary: Any) -> Any:
    from constrained_k2.engines import own_converters
    from constrained_k2.engines.llguidance import LLGuidanceEngine

    if name == "ours, llguidance":
        return _screened(LLGuidanceEngine(vocabulary).compile)
    if name == "ours, xgrammar":
        from constrained_k2.engines.xgrammar import XGrammarEngine

        return _screened(XGrammarEngine(vocabulary).compile)
    if name == "llguidance's own":
        return own_converters.LLGuidanceOwn(vocabulary).compile
    return own_converters.XGrammarOwn(vocabulary).compile


def _screened(compile_schema: Any) -> Any:
    """As :class:`constrained_k2.Compiler` does it, but for any value rather than objects alone."""
    from constrained_k2.errors import UnsupportedSchema
    from constrained_k2.schema.deep_stack import on_deep_stack
    from constrained_k2.schema.screen import screen

    def screened(schema: str) -> Any:
        try:
            screen(json.loads(schema))
        except RecursionError:
            raise UnsupportedSchema("the schema is nested too deeply to be read") from None
        return on_deep_stack(lambda: compile_schema(schema), None)

    return screened


def _accepts(grammar: Any, vocabulary: Any, text: str) -> bool:
    matcher = grammar.matcher("")
    return all(map(matcher.accept, vocabulary.encode(text))) and matcher.is_complete()


def _mask_times(grammar: Any, vocabulary: Any, row: Any, text: str) -> list[float]:
    """Microseconds of each mask while a text is written; none if it is not accepted."""
    matcher = grammar.matcher("")
    times = []
    for token_id in vocabulary.encode(text):
        start = time.perf_counter()
        matcher.fill(row)
        times.append((time.perf_counter() - start) * 1e6)
        if not matcher.accept(token_id):
            return []
    return times if matcher.is_complete() else []
