"""The arms: our grammars, and the engines' own JSON Schema converters. Each runs in its own process.

Native code cannot be interrupted, so a process that takes too long is killed and started again.
"""

import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, Self

ArmName = Literal["ours", "llguidance", "xgrammar"]
ARMS: tuple[ArmName, ...] = ("ours", "llguidance", "xgrammar")


@dataclass(frozen=True, slots=True)
class Written:
    """What a grammar did with one schema and its instances."""

    refusal: str = ""  # why there is no grammar; empty if there is one
    relaxed: tuple[str, ...] = ()  # what the arm itself reports as not enforced
    builtin: str = ""  # why our package uses the engine's converter; empty if it does not
    accepted: tuple[bool, ...] = ()  # by instance
    died: str = ""  # the error that ended an instance, after the schema was taken
    create_ms: float = 0.0  # to build the grammar and a first matcher
    mask_us: tuple[float, ...] = field(default=(), repr=False)  # of every step of every instance
    ran_out: bool = False  # the time limit ended it


class Arm:
    """An arm in a process of its own; a context manager.

    Args:
        name: The arm.
        tokenizer: A Kimi tokenizer's directory; None for a vocabulary of the 256 bytes.
        seconds: Time limit for one schema with all its instances.
    """

    def __init__(self, name: ArmName, tokenizer: Path | None, seconds: float) -> None:
        self.name = name
        self._tokenizer = tokenizer
        self._seconds = seconds
        self._process: Any = None
        self._pipe: Connection | None = None

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def write(self, schema: str, instances: tuple[str, ...]) -> Written:
        """Compile a schema (JSON text), and write its instances (JSON texts) under it."""
        assert self._pipe is not None
        self._pipe.send((schema, instances))
        if self._pipe.poll(self._seconds):
            try:
                written: Written = self._pipe.recv()
            except EOFError:
                written = Written(refusal="the process died")
            else:
                return written
        else:
            limit = f"not done after {self._seconds:.0f} s"
            written = Written(refusal=limit, create_ms=self._seconds * 1000, ran_out=True)
        self._end()
        self._start()
        return written

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
            schema, instances = pipe.recv()
        except EOFError:
            return
        pipe.send(_written(compile_schema, vocabulary, row, schema, instances))


def _compiler(name: ArmName, vocabulary: Any) -> Callable[[str], Any]:
    from benchmarks.baselines import json_schema as builtin
    from constrained_k2.compiler.compiler import Compiler
    from constrained_k2.compiler.shared import GrammarOptions

    if name == "llguidance":
        return builtin.LLGuidanceBuiltin(vocabulary).compile
    if name == "xgrammar":
        return builtin.XGrammarBuiltin(vocabulary).compile
    compiler = Compiler(vocabulary)
    options = GrammarOptions(root="any", undeclared_keys="allow")  # as JSON Schema has it
    return lambda schema: compiler.grammar(schema, "", options=options)


def _written(
    compile_schema: Callable[[str], Any], vocabulary: Any, row: Any, schema: str, instances: tuple[str, ...]
) -> Written:
    start = time.perf_counter()
    try:
        grammar = compile_schema(schema)
        grammar.matcher("")
    except Exception as error:  # noqa: BLE001 - any error counts as a refusal
        lines = str(error).strip().splitlines()[:1] or [type(error).__name__]
        return Written(refusal=lines[0][:300], create_ms=(time.perf_counter() - start) * 1000)
    created = (time.perf_counter() - start) * 1000
    coverage = getattr(grammar, "coverage", None)
    relaxed = tuple(f"{use.pointer}: {use.reason}" for use in coverage.relaxed) if coverage else ()
    own = getattr(grammar, "any_order", True)
    accepted: list[bool] = []
    masks: list[float] = []
    died = ""
    for text in instances:
        taken, error = _write(grammar, vocabulary, row, text, masks)
        accepted.append(taken)
        died = died or error
    return Written("", relaxed, "" if own else "builtin", tuple(accepted), died, created, tuple(masks))


def _write(grammar: Any, vocabulary: Any, row: Any, text: str, masks: list[float]) -> tuple[bool, str]:
    """Write a text with a mask before each token: whether it was accepted whole, and the error that ended it."""
    matcher = grammar.matcher("")
    try:
        for token_id in vocabulary.encode(text):
            start = time.perf_counter()
            matcher.fill(row)
            masks.append((time.perf_counter() - start) * 1e6)
            if not row[token_id >> 5] >> (token_id & 31) & 1 or not matcher.accept(token_id):
                return False, ""
        matcher.fill(row)
        return matcher.is_complete(), ""
    except Exception as error:  # noqa: BLE001 - any error ends the request
        return False, (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
