"""The xgrammar engine: compiles schemas (keys in schema order), matches arguments, fills masks."""

import base64
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import xgrammar

from constrained_k2 import errors
from constrained_k2.engines.protocol import ArgumentEncoding, Failures
from constrained_k2.engines.xgrammar.worker import FAILED, compile_rewritten, grammar_compiler
from constrained_k2.errors import SchemaTooCostly, UnsupportedSchema
from constrained_k2.grammar.plan.nodes import Plan
from constrained_k2.request.spec import EngineName
from constrained_k2.schema.coverage import Coverage, coverage_of
from constrained_k2.schema.document import SchemaDocument
from constrained_k2.schema.undeclared_keys import UndeclaredKeys
from constrained_k2.vocabulary.bitmask import BitmaskRows, words_per_row
from constrained_k2.vocabulary.vocabulary import Vocabulary


class XGrammarEngine:
    """Compiles schemas with xgrammar, after a trial in a process under limits (see :mod:`.worker`).

    The format's ``engine_stop`` is the stop token, so masks allow it exactly when the JSON is complete. All other
    special tokens and unused ids are presented as bytes that begin with 0xFF, which is never part of UTF-8, so they
    cannot occur in a string. ``seconds`` limits the CPU time for one schema, with a memory limit of 256 MB; None for
    20 s and 1 GB, which stop only hostile schemas.
    """

    name: EngineName = "xgrammar"
    clock = staticmethod(time.monotonic)
    cached_bytes = 0

    def __init__(self, vocabulary: Vocabulary, *, seconds: float | None = None) -> None:
        width = 32 * words_per_row(vocabulary.size)  # else xgrammar sets the unused bits of the last word
        tokens = [vocabulary.ordinary_bytes(token_id) or b"\xff<special_%d>" % token_id for token_id in range(width)]
        stop = vocabulary.format.engine_stop
        self._seconds, self._bytes = (20.0, 1 << 30) if seconds is None else (seconds, 256 << 20)
        self._worker = _Worker(tokens, stop, {"seconds": self._seconds, "memory_bytes": self._bytes})
        self._compiler = grammar_compiler(tokens, stop)
        self._encode = vocabulary.encode
        self._worker.connect()

    def forget(self) -> None:
        """Do nothing: this engine has no caches."""

    def compile(
        self, schema: str, undeclared_keys: UndeclaredKeys = "allow", encoding: ArgumentEncoding = "json"
    ) -> "XGrammarGrammar":
        if encoding != "json":
            problem = "this package writes Kimi K3's arguments with LLGuidance only"
            raise UnsupportedSchema(problem, "", "Use the engine 'llguidance'", engine=self.name)
        answer: dict[str, Any] = json.loads(self._worker.ask(undeclared_keys, schema.encode()))
        if answer.get("killed") == FAILED:
            problem = "xgrammar's worker process failed on this one: see the traceback in the log"
            raise UnsupportedSchema(problem, "", "Use the engine 'llguidance'", engine=self.name)
        if "killed" in answer:
            is_time = -answer["killed"] in {signal.SIGPROF, signal.SIGALRM}
            limit = round(self._seconds * 1000) if is_time else self._bytes
            problem = f"xgrammar needs more than {self._seconds:g} s or {self._bytes >> 20} MB for this schema"
            remedy = "Simplify the schema, or use the engine 'llguidance'"
            raise SchemaTooCostly(problem, "", remedy, "compile_ms" if is_time else "compile_bytes", limit, limit + 1)
        if "error" in answer:
            name, fields = answer["error"]
            if name == UnsupportedSchema.__name__:
                fields[-1] = self.name
            raise getattr(errors, name)(*fields)
        compiled = compile_rewritten(self._compiler, answer["rewritten"])
        coverage = coverage_of(SchemaDocument(json.loads(schema)), self.name, answer["notes"])
        plan = pickle.loads(base64.b64decode(answer["plan"]))  # noqa: S301 - of our own process
        return XGrammarGrammar(compiled, answer["rewritten"], coverage, self._encode, plan)

    def compile_text(
        self, kind: Literal["regex", "lark"], text: str, encoding: ArgumentEncoding | None = None
    ) -> "XGrammarGrammar":
        del text, encoding
        name = "a regular expression" if kind == "regex" else "a Lark grammar"
        problem = f"this package compiles {name} with LLGuidance only"
        raise UnsupportedSchema(problem, "", "Use the engine 'llguidance'", engine=self.name)


@dataclass(eq=False)
class XGrammarGrammar:
    """One compiled schema. Implements :class:`~constrained_k2.engines.protocol.ArgumentGrammar`."""

    compiled: xgrammar.CompiledGrammar
    schema: str  # as rewritten by XGrammarWriter
    coverage: Coverage
    encode: Callable[[str], list[int]]
    plan: Plan | None

    def __post_init__(self) -> None:
        self.cost_bytes = int(self.compiled.memory_size_bytes)
        self.on_growth: Callable[[int], None] = lambda _: None  # never called: the grammar does not grow

    def matcher(self, location: str, *, may_relax: bool = False) -> "XGrammarMatcher":
        del location, may_relax  # the matcher raises no errors
        return XGrammarMatcher(xgrammar.GrammarMatcher(self.compiled), self.encode, self.plan)


@dataclass(slots=True, eq=False)
class XGrammarMatcher:
    """Parser state of one call's arguments. Implements :class:`~constrained_k2.engines.protocol.ArgumentMatcher`."""

    text_grammar: ClassVar[None] = None
    _matcher: xgrammar.GrammarMatcher
    _encode: Callable[[str], list[int]]
    plan: Plan | None
    _ids: list[int] = field(default_factory=list)

    def fill(self, row: npt.NDArray[np.int32], address: int = 0) -> None:
        del address  # xgrammar takes arrays
        self._matcher.fill_next_token_bitmask(row)

    def mask_without_engine(self) -> None:
        """Return None: masks are not cached."""

    @staticmethod
    def fill_batch(batch: Sequence[tuple["XGrammarMatcher", int]], rows: BitmaskRows) -> Failures:
        for matcher, row in batch:
            matcher.fill(rows[row])
        return []

    def forced_tokens(self) -> list[int]:
        # The last token of the forced text may be the prefix of a longer one.
        return self._encode(self._matcher.find_jump_forward_string())[:-1]

    def accept(self, token_id: int) -> bool:
        taken = bool(self._matcher.accept_token(token_id))
        if taken:
            self._ids.append(token_id)
        return taken

    def written(self) -> Sequence[int]:
        return self._ids

    def rollback(self, count: int) -> None:
        if count:
            self._matcher.rollback(count)
            del self._ids[-count:]

    def is_complete(self) -> bool:
        return bool(self._matcher.is_completed())

    def fork(self) -> "XGrammarMatcher":
        return XGrammarMatcher(self._matcher.fork(), self._encode, self.plan, self._ids.copy())


class _Worker:
    """The process that compiles schemas on trial, one at a time; each server process starts its own on demand."""

    def __init__(self, tokens: list[bytes], stop_id: int, limits: dict[str, Any]) -> None:
        self._setup = (tokens, stop_id, limits)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._owner = 0

    def ask(self, undeclared_keys: UndeclaredKeys, schema: bytes) -> bytes:
        """Return the process's answer to a schema."""
        with self._lock:
            for _ in range(2):
                connection = self.connect()
                try:
                    connection.send_bytes(undeclared_keys.encode())
                    connection.send_bytes(schema)
                    return connection.recv_bytes()
                except (EOFError, OSError):
                    self._process = None
        raise RuntimeError("xgrammar's worker process has ended twice on one schema: see its output above")

    def connect(self) -> Connection:
        """Start the process if it is not running, and wait until it is ready (two seconds, mostly for imports)."""
        # A forked process must not use its parent's connection.
        if self._connection is None or self._process is None or self._owner != os.getpid():
            self._owner = os.getpid()
            self._connection, remote = Pipe()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "constrained_k2.engines.xgrammar.worker"],
                stdin=remote.fileno(),
                stdout=2,  # standard error
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"},
            )
            remote.close()
            weakref.finalize(self, _end, self._process, self._owner)
            try:
                self._connection.send(self._setup)
                self._connection.recv_bytes()
            except (EOFError, OSError) as error:
                raise RuntimeError("xgrammar's worker process does not start: see its output above") from error
        return self._connection


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    if owner == os.getpid():
        process.kill()
        process.wait()
