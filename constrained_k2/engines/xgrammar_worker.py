"""The process in which schemas are tried out for xgrammar: ``python -m constrained_k2.engines.xgrammar_worker``.

Some schemas take xgrammar minutes or gigabytes, and native code cannot be interrupted. This process holds the
vocabulary and forks for every schema; the fork rewrites and compiles it under limits of the kernel's, so that a hostile
schema ends nothing but its own fork. What compiled here is compiled once more by the parent, which takes as long again:
carried over (xgrammar writes grammars as JSON) it would take ten times as long and hundreds of megabytes.

It speaks frames (eight bytes of length, then as many) on its standard input and output and ends with the former; a fork
ends by its own timers even where this process is gone. For Linux.

    in    {"tokens": […], "stop_id": …, "seconds": …, "memory_bytes": …}, then a schema a frame
    out   {} when ready, then for each schema {"notes": …, "rewritten": …}, {"error": …} or {"killed": …}
"""

import json
import os
import re
import resource
import signal
import sys
import traceback
from typing import IO, Any

import xgrammar

from constrained_k2.errors import ConstrainedK2Error, UnsupportedSchema
from constrained_k2.grammar.xgrammar_schema import XGrammarWriter
from constrained_k2.grammar.xgrammar_strings import PatternSearch
from constrained_k2.schema.document import SchemaDocument
from constrained_k2.schema.normalize import Normalizer

FAILED = 1
"""How a fork ends that was over no limit: by an error that nobody foresaw, which it prints."""

_WALL_FACTOR = 10  # the limit is on processor time, so that it does not depend on what else the machine does
_MAX_BLANKS = 16  # of one run: enough for indentation; on the real vocabulary each costs a grammar 0.2 MB
_REMEDY = "Remove or rewrite what is named, or leave the tool out"
_AUTOMATON = re.compile(r"^\w+ ::= .*\bRegex\(", re.MULTILINE)


def read_frame(stream: IO[bytes]) -> bytes | None:
    """The next frame; None where the stream ends, also in the middle of one."""
    size = stream.read(8)
    if len(size) < 8:
        return None
    length = int.from_bytes(size, "big")
    frame = stream.read(length)
    return frame if len(frame) == length else None


def write_frame(stream: IO[bytes], frame: bytes) -> None:
    """Write a frame and flush."""
    stream.write(len(frame).to_bytes(8, "big"))
    stream.write(frame)
    stream.flush()


def grammar_compiler(tokens: list[bytes], stop_id: int) -> xgrammar.GrammarCompiler:
    """A compiler over the vocabulary, the same in both processes; without a cache, since ours is above it."""
    info = xgrammar.TokenizerInfo(
        tokens, vocab_type=xgrammar.VocabType.RAW, vocab_size=len(tokens), stop_token_ids=[stop_id]
    )
    return xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)


def compile_rewritten(compiler: xgrammar.GrammarCompiler, schema: str) -> xgrammar.CompiledGrammar:
    """Compile what :class:`XGrammarWriter` wrote.

    Raises:
        RuntimeError: xgrammar has no grammar for it.
    """
    return compiler.compile_json_schema(schema, strict_mode=False, max_whitespace_cnt=_MAX_BLANKS)


def try_out(compiler: xgrammar.GrammarCompiler, schema: bytes) -> bytes:
    """Rewrite a schema and compile it.

    Returns:
        ``{"notes": {…}, "rewritten": …}`` or ``{"error": [class, fields]}``.

    Raises:
        MemoryError: xgrammar ran into the limit.
    """
    try:
        return json.dumps(_try_out(compiler, json.loads(schema))).encode()
    except ConstrainedK2Error as error:
        return json.dumps({"error": [type(error).__name__, error.args]}).encode()


def _try_out(compiler: xgrammar.GrammarCompiler, document: Any) -> dict[str, Any]:
    try:
        normalizer = Normalizer(SchemaDocument(document), PatternSearch().is_found)
        rewritten = json.dumps(XGrammarWriter(normalizer).write(frozenset({("#", True)})))
        compiled = compile_rewritten(compiler, rewritten)
        if _AUTOMATON.search(str(compiled.grammar)):
            raise UnsupportedSchema("xgrammar reads a pattern in the way in which it misreads some", "", _REMEDY)
    except RecursionError as error:
        raise UnsupportedSchema("the schema is nested too deeply to be read", "", "Flatten it") from error
    except RuntimeError as error:  # what xgrammar raises
        if "bad_alloc" in str(error):
            raise MemoryError from error
        lines = str(error).strip().splitlines() or ["unknown error"]
        raise UnsupportedSchema(f"xgrammar has no grammar for this schema: {lines[0][:300]}", "", _REMEDY) from error
    return {"notes": normalizer.notes, "rewritten": rewritten}


def _forked(compiler: xgrammar.GrammarCompiler, schema: bytes, limits: dict[str, Any]) -> bytes:
    """Compile a schema in a fork under the limits; ``{"killed": exit code}`` where it did not come to an answer."""
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        status = FAILED
        try:
            os.close(source)
            _limit(**limits)
            with os.fdopen(sink, "wb") as stream:
                stream.write(try_out(compiler, schema))
            status = 0
        except MemoryError:
            status = 2
        except Exception:  # noqa: BLE001 - the status says so to the parent
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(sink)
    with os.fdopen(source, "rb") as stream:
        reply = stream.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return reply if status == 0 else json.dumps({"killed": status}).encode()


def _limit(seconds: float, memory_bytes: int) -> None:
    """Bound this process; the signals' default is to end it, whatever code it is in."""
    with open("/proc/self/statm", encoding="ascii") as stream:  # noqa: PTH123 - as little as possible behind a fork
        held = int(stream.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (held + memory_bytes,) * 2)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, seconds * _WALL_FACTOR)


def main() -> None:
    """Serve until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the parent, with which this ends
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not come between the frames
    setup = read_frame(sys.stdin.buffer)
    if setup is None:
        return
    limits = json.loads(setup)
    compiler = grammar_compiler([token.encode("latin-1") for token in limits.pop("tokens")], limits.pop("stop_id"))
    write_frame(output, b"{}")
    while (schema := read_frame(sys.stdin.buffer)) is not None:
        write_frame(output, _forked(compiler, schema, limits))


if __name__ == "__main__":
    main()
