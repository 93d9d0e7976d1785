"""A separate process that tries to compile schemas with xgrammar, under time and memory limits.

Started as ``python -m constrained_k2.engines.xgrammar.worker``.
Some schemas take xgrammar minutes or gigabytes, and native code cannot be interrupted. This process has the vocabulary
and forks for every schema. The fork rewrites and compiles the schema under kernel limits; its timers end it.
The parent compiles an accepted schema again: to send the compiled grammar (as xgrammar's JSON) would take ten times as
long, and hundreds of megabytes. Standard input is one end of a :func:`multiprocessing.Pipe`. Linux only. Messages:

    in    (tokens, stop_id, {"seconds": …, "memory_bytes": …}) pickled, then pairs: "allow" or "forbid" for undeclared
          keys, and a schema as JSON text
    out   {} when ready, then for each schema {"notes": …, "rewritten": …, "plan": …}, {"error": …} or {"killed": …}, as
          JSON; the plan is pickled, as base64
"""

import base64
import json
import os
import pickle
import re
import resource
import signal
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import xgrammar

from constrained_k2.errors import ConstrainedK2Error, UnsupportedSchema
from constrained_k2.grammar.plan.nodes import Plan
from constrained_k2.grammar.plan.planner import plan_schema
from constrained_k2.grammar.plan.planning import Planning
from constrained_k2.grammar.xgrammar.strings import is_found
from constrained_k2.grammar.xgrammar.writer import XGrammarWriter
from constrained_k2.schema.document import SchemaDocument
from constrained_k2.schema.no_instances import write_some
from constrained_k2.schema.normalize import Normalizer
from constrained_k2.schema.shapes import Node
from constrained_k2.schema.undeclared_keys import UndeclaredKeys

FAILED = 1  # exit code of a fork that hit no limit but an unexpected error, whose traceback it prints
_WALL_FACTOR = 10  # the limit is on CPU time, so that it does not depend on the load; wall time only ends what hangs
_MAX_WHITESPACE = 16  # characters in a run: enough for indentation; each costs a grammar 0.2 MB (real vocabulary)
_REMEDY = "Remove or rewrite the named part, or leave the tool out"
_ROOT: Node = frozenset({("#", True)})
_AUTOMATON = re.compile(r"^\w+ ::= .*\bRegex\(", re.MULTILINE)


def grammar_compiler(tokens: list[bytes], stop_id: int) -> xgrammar.GrammarCompiler:
    """Return a compiler, the same in both processes; without xgrammar's cache, since this package has its own."""
    kind = xgrammar.VocabType.RAW
    info = xgrammar.TokenizerInfo(tokens, vocab_type=kind, vocab_size=len(tokens), stop_token_ids=[stop_id])
    return xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)


def compile_rewritten(compiler: xgrammar.GrammarCompiler, schema: str) -> xgrammar.CompiledGrammar:
    """Compile a schema that :class:`XGrammarWriter` wrote; a RuntimeError means that xgrammar has no grammar for it."""
    return compiler.compile_json_schema(schema, strict_mode=False, max_whitespace_cnt=_MAX_WHITESPACE)


def _try_out(compiler: xgrammar.GrammarCompiler, undeclared_keys: UndeclaredKeys, schema: bytes) -> dict[str, Any]:
    """Rewrite a schema and compile it; a MemoryError means that xgrammar hit the memory limit."""

    def write(normalizer: Normalizer) -> tuple[str, Normalizer]:
        return json.dumps(XGrammarWriter(normalizer, undeclared_keys).write(_ROOT)), normalizer

    try:
        rewritten, normalizer = write_some(SchemaDocument(json.loads(schema)), is_found, write)
        compiled = compile_rewritten(compiler, rewritten)
        if _AUTOMATON.search(str(compiled.grammar)):
            raise UnsupportedSchema("xgrammar reads a pattern as an automaton, which is not exact", "", _REMEDY)
    except RecursionError as error:
        raise UnsupportedSchema("the schema is nested too deeply", "", "Flatten it") from error
    except RuntimeError as error:  # from xgrammar
        if "bad_alloc" in str(error):
            raise MemoryError from error
        cause = (str(error).strip().splitlines() or ["unknown error"])[0][:300]
        raise UnsupportedSchema(f"xgrammar has no grammar for this schema: {cause}", "", _REMEDY) from error
    plan = pickle.dumps(_plan(undeclared_keys, schema))
    return {"notes": normalizer.notes.found, "rewritten": rewritten, "plan": base64.b64encode(plan).decode()}


def _plan(undeclared_keys: UndeclaredKeys, schema: bytes) -> Plan | None:
    """Plan a schema, to find the shortest texts that complete a call; None if it has no plan."""

    def write(normalizer: Normalizer) -> Plan:
        planning = Planning(normalizer, lambda _: True, lambda *_, **__: True, undeclared_keys, "exact")
        return plan_schema(planning, _ROOT)

    with suppress(ConstrainedK2Error):
        return write_some(SchemaDocument(json.loads(schema)), is_found, write)
    return None


def _forked(
    compiler: xgrammar.GrammarCompiler, undeclared_keys: UndeclaredKeys, schema: bytes, limits: dict[str, Any]
) -> bytes:
    """Try a schema out in a fork under the limits; ``{"killed": exit code}`` if the fork ends without an answer."""
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        status = FAILED
        try:
            os.close(source)
            _limit(**limits)
            try:
                answer = _try_out(compiler, undeclared_keys, schema)
            except ConstrainedK2Error as error:
                answer = {"error": [type(error).__name__, error.args]}
            with os.fdopen(sink, "wb") as stream:
                stream.write(json.dumps(answer).encode())
            status = 0
        except MemoryError:
            status = 2
        except Exception:  # noqa: BLE001 - the exit code reports it
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(sink)
    with os.fdopen(source, "rb") as stream:
        reply = stream.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return reply if status == 0 else json.dumps({"killed": status}).encode()


def _limit(seconds: float, memory_bytes: int) -> None:
    """Limit this process's time and memory. The signals at a limit end it even in native code."""
    with open("/proc/self/statm", encoding="ascii") as stream:  # noqa: PTH123 - as little as possible after a fork
        used = int(stream.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (used + memory_bytes,) * 2)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, seconds * _WALL_FACTOR)


def main() -> None:
    """Answer until the parent closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the parent; this process ends with it
    connection = Connection(0)
    with suppress(EOFError, ConnectionError):
        tokens, stop_id, limits = connection.recv()
        compiler = grammar_compiler(tokens, stop_id)
        connection.send_bytes(b"{}")
        while True:
            undeclared_keys: UndeclaredKeys = "forbid" if connection.recv_bytes() == b"forbid" else "allow"
            connection.send_bytes(_forked(compiler, undeclared_keys, connection.recv_bytes(), limits))


if __name__ == "__main__":
    main()
