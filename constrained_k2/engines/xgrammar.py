"""xgrammar as the engine: properties in the schema's order, and a coverage that says what it does not keep."""

import json
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import xgrammar

from constrained_k2 import errors
from constrained_k2.bitmask import BitmaskRows, words_per_row
from constrained_k2.engines.xgrammar_worker import (
    FAILED,
    compile_rewritten,
    grammar_compiler,
    read_frame,
    write_frame,
)
from constrained_k2.errors import ConstrainedK2Error, SchemaTooCostly, UnsupportedSchema
from constrained_k2.schema.coverage import Coverage, coverage_of
from constrained_k2.schema.document import SchemaDocument
from constrained_k2.vocabulary import Vocabulary

_MOST_SECONDS = 20.0
_MOST_BYTES = 1 << 30
_ADMISSION_BYTES = 256 << 20
_TIMERS = (-27, -14)  # SIGPROF and SIGALRM, as exit codes


class XGrammarEngine:
    """Schemas compiled by xgrammar, after they were tried out in a process under limits (see ``xgrammar_worker``).

    Args:
        vocabulary: The model's vocabulary. Its ``<|tool_call_end|>`` is made the engine's stop token, so the engine
            itself opens the exit when the JSON is complete. Every other special token and every hole is presented as
            bytes that begin with 0xFF, which are never part of UTF-8, so none of them is text in a string.
        seconds: The processor time that one schema may take, and with it less memory (256 MB); None for generous
            limits (20 s, 1 GB), which only bound what is hostile.
    """

    name = "xgrammar"
    clock = staticmethod(time.monotonic)

    def __init__(self, vocabulary: Vocabulary, *, seconds: float | None = None) -> None:
        width = 32 * words_per_row(vocabulary.size)  # xgrammar allows what lies behind the last token in the last word
        tokens = [vocabulary.ordinary_bytes(token_id) or b"\xff<special_%d>" % token_id for token_id in range(width)]
        stop = vocabulary.format.call_end
        self._seconds = _MOST_SECONDS if seconds is None else seconds
        self._bytes = _MOST_BYTES if seconds is None else _ADMISSION_BYTES
        self._worker = _Worker(tokens, stop, self._seconds, self._bytes)
        self._compiler = grammar_compiler(tokens, stop)
        self._encode = vocabulary.encode
        self._worker.start()

    @property
    def cached_bytes(self) -> int:
        """See :class:`~constrained_k2.engines.protocol.Engine`."""
        return 0

    def forget(self) -> None:
        """See :class:`~constrained_k2.engines.protocol.Engine`."""

    def compile(self, schema: str) -> "XGrammarGrammar":
        """See :class:`~constrained_k2.engines.protocol.Engine`.

        Raises:
            UnsupportedSchema: The schema is wrong, nothing satisfies it, or xgrammar has no grammar for it.
            SchemaTooCostly: It is over a budget.
        """
        answer: dict[str, Any] = json.loads(self._worker.ask(schema.encode()))
        if answer.get("killed") == FAILED:
            raise UnsupportedSchema(
                "the process that tries schemas out failed on this one; its log says why",
                "",
                "Use the engine 'llguidance'",
                engine=self.name,
            )
        if "killed" in answer:
            raise self._over(answer["killed"])
        if "error" in answer:
            raise self._error(*answer["error"])
        compiled = compile_rewritten(self._compiler, answer["rewritten"])
        notes = {pointer: (status, reason) for pointer, (status, reason) in answer["notes"].items()}
        coverage = coverage_of(SchemaDocument(json.loads(schema)), self.name, notes)
        return XGrammarGrammar(compiled, answer["rewritten"], coverage, self._encode)

    def _over(self, exit_code: int) -> SchemaTooCostly:
        if exit_code in _TIMERS:
            budget, limit = "compile_ms", round(self._seconds * 1000)
        else:
            budget, limit = "compile_bytes", self._bytes
        return SchemaTooCostly(
            f"xgrammar needs more than {self._seconds:g} s or {self._bytes >> 20} MB for this schema",
            "",
            "Simplify the schema, or use the engine 'llguidance'",
            budget=budget,
            limit=limit,
            actual=limit + 1,
        )

    def _error(self, name: str, fields: list[Any]) -> ConstrainedK2Error:
        if name == "UnsupportedSchema":
            problem, place, remedy, keyword, _ = fields
            return UnsupportedSchema(problem, place, remedy, keyword, self.name)
        kind: type[ConstrainedK2Error] = getattr(errors, name)
        return kind(*fields)


class XGrammarGrammar:
    """One compiled schema.

    Attributes:
        schema: What xgrammar's converter was given: the user's schema, rewritten into what it keeps.
        coverage: See :class:`~constrained_k2.engines.protocol.ArgumentGrammar`.
        cost_bytes: See :class:`~constrained_k2.engines.protocol.ArgumentGrammar`.
        encode: The model's tokenizer.
    """

    def __init__(
        self, compiled: xgrammar.CompiledGrammar, schema: str, coverage: Coverage, encode: Callable[[str], list[int]]
    ) -> None:
        self.encode = encode
        self.schema = schema
        self.coverage = coverage
        self.cost_bytes = int(compiled.memory_size_bytes)
        self._compiled = compiled

    def matcher(self, place: str) -> "XGrammarMatcher":
        """See :class:`~constrained_k2.engines.protocol.ArgumentGrammar`."""
        del place  # its matcher has no limits that it could hit
        return XGrammarMatcher(xgrammar.GrammarMatcher(self._compiled), self.encode)


class XGrammarMatcher:
    """One call's arguments."""

    __slots__ = ("_encode", "_matcher")

    def __init__(self, matcher: xgrammar.GrammarMatcher, encode: Callable[[str], list[int]]) -> None:
        self._matcher = matcher
        self._encode = encode

    def fill(self, row: npt.NDArray[np.int32], address: int = 0) -> None:
        """See :class:`~constrained_k2.engines.protocol.ArgumentMatcher`."""
        del address  # xgrammar takes arrays
        self._matcher.fill_next_token_bitmask(row)

    def known_mask(self) -> None:
        """See :class:`~constrained_k2.engines.protocol.ArgumentMatcher`."""

    @staticmethod
    def fill_batch(
        batch: Sequence[tuple["XGrammarMatcher", int]], rows: BitmaskRows
    ) -> list[tuple[int, ConstrainedK2Error]]:
        """See :class:`~constrained_k2.engines.protocol.ArgumentMatcher`. It has no limits, so no row fails."""
        for matcher, row in batch:
            matcher.fill(rows[row])
        return []

    def forced_tokens(self) -> list[int]:
        """See :class:`~constrained_k2.engines.protocol.ArgumentMatcher`.

        Of the text that xgrammar says is forced, the last token may go on beyond it, so it is left out.
        """
        return self._encode(self._matcher.find_jump_forward_string())[:-1]

    def accept(self, token_id: int) -> bool:
        """See :class:`~constrained_k2.engines.protocol.ArgumentMatcher`."""
        return bool(self._matcher.accept_token(token_id))

    def rollback(self, count: int) -> None:
        """See :class:`~constrained_k2.engines.protocol.ArgumentMatcher`."""
        if count:
            self._matcher.rollback(count)

    def is_complete(self) -> bool:
        """See :class:`~constrained_k2.engines.protocol.ArgumentMatcher`."""
        return bool(self._matcher.is_completed())

    def fork(self) -> "XGrammarMatcher":
        """See :class:`~constrained_k2.engines.protocol.ArgumentMatcher`."""
        return XGrammarMatcher(self._matcher.fork(), self._encode)


class _Worker:
    """The process that tries schemas out: started on demand, once per process that uses it; one schema at a time."""

    def __init__(self, tokens: list[bytes], stop_id: int, seconds: float, memory_bytes: int) -> None:
        self._setup = {"stop_id": stop_id, "seconds": seconds, "memory_bytes": memory_bytes}
        self._tokens = tokens
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def start(self) -> None:
        """Start the process and wait until it is ready (two seconds, most of it imports)."""
        with self._lock:
            self._started()

    def ask(self, schema: bytes) -> bytes:
        """The process's answer to a schema.

        Raises:
            RuntimeError: The process ends, started anew as well.
        """
        with self._lock:
            for _ in range(2):
                stdin, stdout = self._started()
                try:
                    write_frame(stdin, schema)
                    answer = read_frame(stdout)
                except BrokenPipeError:
                    answer = None
                if answer is not None:
                    return answer
                self._process = None
        raise RuntimeError("the process that tries schemas out for xgrammar has ended")

    def _started(self) -> tuple[IO[bytes], IO[bytes]]:
        if self._process is None or self._owner != os.getpid():  # a fork of ours must not share the pipes
            self._owner = os.getpid()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "constrained_k2.engines.xgrammar_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"},
            )
            weakref.finalize(self, _end, self._process, self._owner)
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            setup = self._setup | {"tokens": [token.decode("latin-1") for token in self._tokens]}
            write_frame(self._process.stdin, json.dumps(setup).encode())
            if read_frame(self._process.stdout) is None:
                raise RuntimeError("the process that tries schemas out does not start; see above")
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    if owner == os.getpid():
        process.kill()
        process.communicate()
