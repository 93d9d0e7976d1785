"""The arms: our grammars on both engines, and the engines' builtin JSON Schema converters, each in its own process.

Some converters never finish on some schemas, and native code cannot be interrupted, so a process that takes too long is
killed and restarted. Schemas mean what JSON Schema says: any root, and undeclared keys allowed.
"""

import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

from constrained_k2.request.spec import EngineName

ArmName = Literal["ours, llguidance", "ours, strict", "ours, xgrammar", "llguidance's builtin", "xgrammar's builtin"]
ARMS: tuple[ArmName, ...] = ("ours, llguidance", "ours, xgrammar", "llguidance's builtin", "xgrammar's builtin")
"""All but the grammars of strict tools: those of other tools, on LLGuidance, where they enforce everything."""


@dataclass(frozen=True, slots=True)
class Work:
    """One schema for an arm."""

    schema: str  # JSON text
    instances: tuple[str, ...] = ()  # JSON texts to write
    masked: bool = False  # true to make and time a mask before each of their tokens
    weighed: bool = False  # true to measure memory, which makes compilation slower


@dataclass(frozen=True, slots=True)
class Outcome:
    """An arm's result for a schema."""

    refusal: str = ""  # the reason why the schema has no grammar; empty if it has one
    relaxed: tuple[str, ...] = ()  # keywords that are not enforced, as reported by the arm
    accepted: tuple[bool, ...] = ()  # for each instance, True if it was accepted
    died: str = ""  # the error that ended an instance; empty if none did
    ran_out: bool = False  # true if the time limit ended the process
    create_ms: float = 0.0  # time to build the grammar and a first matcher
    mask_us: tuple[float, ...] = field(default=(), repr=False)  # time of each mask, if masked
    memory_mb: float = 0.0  # growth of the process, if measured


class Arm:
    """An arm in a process of its own.

    Args:
        name: The arm.
        tokenizer: A Kimi tokenizer's directory; None for a vocabulary of the 256 bytes.
    """

    seconds = 20.0  # limit for one schema

    def __init__(self, name: ArmName, tokenizer: Path | None = None) -> None:
        self._arguments = name, tokenizer
        self._processes: ProcessPoolExecutor | None = None
        self.pid = 0

    def __enter__(self) -> Self:
        """Start the process."""
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the process."""
        self._end()

    def run(self, work: Work) -> Outcome:
        """Compile a schema and check its instances."""
        assert self._processes is not None
        try:
            return self._processes.submit(_run, work).result(self.seconds)
        except TimeoutError:
            limit = f"not done after {self.seconds:.0f} s"
            outcome = Outcome(refusal=limit, ran_out=True, create_ms=self.seconds * 1000)
        except BrokenExecutor:
            outcome = Outcome(refusal="the process died")
        self._end()
        self._start()
        return outcome

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._processes = ProcessPoolExecutor(1, context, _prepare, self._arguments)
        self.pid = self._processes.submit(os.getpid).result(180)

    def _end(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        if self._processes is not None:
            self._processes.shutdown()


_prepared: list[Callable[[Work], Outcome]] = []
"""In the arm's process: what runs a schema."""


def _prepare(name: ArmName, tokenizer: Path | None) -> None:
    """Begin the arm's process."""
    from constrained_k2.vocabulary.bitmask import allocate_bitmask
    from constrained_k2.vocabulary.vocabulary import Vocabulary

    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # hides xgrammar's warnings, one for each keyword that it drops
    vocabulary = Vocabulary.of_bytes() if tokenizer is None else Vocabulary.from_pretrained(tokenizer)
    compile_schema = _compiler(name, vocabulary)
    row = allocate_bitmask(1, vocabulary.size)[0]
    compile_schema('{"type":"object"}').matcher("").fill(row)
    _prepared.append(partial(_outcome, compile_schema, vocabulary, row, may_relax=name != "ours, strict"))


def _run(work: Work) -> Outcome:
    """Run a schema in the arm's process."""
    return _prepared[0](work)


def _outcome(compile_schema: Any, vocabulary: Any, row: Any, work: Work, *, may_relax: bool) -> Outcome:
    before = _reset_peak() if work.weighed else 0.0
    start = time.perf_counter()
    grammar: Any = None
    refusal = ""
    try:
        grammar = compile_schema(work.schema)
        grammar.matcher("")
    except Exception as error:  # noqa: BLE001 - any error counts as a refusal
        refusal = _first_line(error)
    created = (time.perf_counter() - start) * 1000
    grown = _megabytes("VmHWM") - before if work.weighed else 0.0
    if refusal:
        return Outcome(refusal=refusal, create_ms=created, memory_mb=grown)
    relaxed = tuple(f"{use.pointer}: {use.reason}" for use in grammar.coverage.inexact)
    accepted: list[bool] = []
    masks: list[float] = []
    died = ""
    for text in work.instances:
        matcher = grammar.matcher("", may_relax=may_relax)
        try:
            accepted.append(_accepts(matcher, vocabulary.encode(text), row if work.masked else None, masks))
        except Exception as error:  # noqa: BLE001 - any error ends a request
            accepted.append(False)
            died = died or _first_line(error)
    return Outcome(
        relaxed=relaxed,
        accepted=tuple(accepted),
        died=died,
        create_ms=created,
        mask_us=tuple(masks),
        memory_mb=grown,
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


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


def _compiler(name: ArmName, vocabulary: Any) -> Callable[[str], Any]:
    from benchmarks.schemas import builtin
    from constrained_k2.compiler.compiler import Compiler
    from constrained_k2.compiler.shared import GrammarOptions
    from constrained_k2.errors import UnsupportedSchema

    if name == "llguidance's builtin":
        return builtin.LLGuidanceBuiltin(vocabulary).compile
    if name == "xgrammar's builtin":
        return builtin.XGrammarBuiltin(vocabulary).compile
    engine: EngineName = "xgrammar" if name == "ours, xgrammar" else "llguidance"
    compiler = Compiler(vocabulary, engine, cache_bytes=1 << 20)  # each schema is to be compiled
    options = GrammarOptions(root="any", undeclared_keys="allow")

    def compile_schema(schema: str) -> Any:
        if schema in {"true", "false"}:  # in the suite; the schemas of requests are objects
            schema = f'{{"allOf":[{schema}]}}'
        grammar = compiler.grammar(schema, "", options=options)
        if name == "ours, strict" and grammar.coverage.inexact:
            use = grammar.coverage.inexact[0]
            raise UnsupportedSchema(use.reason, use.pointer, "Leave strict out")
        return grammar

    return compile_schema


def _accepts(matcher: Any, token_ids: list[int], row: Any, masks: list[float]) -> bool:
    """Write a text, with a mask before each token if there is a row for it; True if it was accepted whole."""
    for token_id in token_ids:
        if row is not None:
            start = time.perf_counter()
            matcher.fill(row)
            masks.append((time.perf_counter() - start) * 1e6)
            if not row[token_id >> 5] >> (token_id & 31) & 1:
                return False
        if not matcher.accept(token_id):
            return False
    return bool(matcher.is_complete())
