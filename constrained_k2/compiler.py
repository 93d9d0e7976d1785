"""From a request to what its matchers share. Schemas are compiled on first use and cached by their text."""

import _thread
import json
import threading
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

from constrained_k2.bitmask import TokenSet
from constrained_k2.cache import LeastRecentlyUsed
from constrained_k2.compiled import CompiledToolCalls
from constrained_k2.counters import CompileCounts
from constrained_k2.engines.protocol import ArgumentGrammar, Engine
from constrained_k2.errors import ConstrainedK2Error, InvalidRequest, SchemaTooCostly, UnsupportedSchema, kind_of_json
from constrained_k2.header import HeaderStems, NameEnds
from constrained_k2.phases import Phase, phase_sets
from constrained_k2.policy import DEFAULT_POLICY, StrictPolicy
from constrained_k2.schema.deep_stack import on_deep_stack
from constrained_k2.schema.document import SchemaDocument
from constrained_k2.schema.screen import screen
from constrained_k2.tools import ENGINES, EngineName, ToolCallSpec
from constrained_k2.vocabulary import Vocabulary

__all__ = ["CompiledToolCalls", "Compiler"]

_STEMS_BYTES = 32 << 20
_PREPARED_AT_ONCE = 4
_LEAST_CACHE_BYTES = 1 << 20
_REFUSAL_BYTES = 2048  # a refusal and its key, roughly


class _Compiled(NamedTuple):
    """What came of compiling a schema.

    Attributes:
        outcome: The grammar, or why there is none.
        seconds: What that took by the engine's clock.
    """

    outcome: ArgumentGrammar | UnsupportedSchema | SchemaTooCostly
    seconds: float


class Compiler:
    """Compiles requests for one vocabulary. Make one per process; all methods may be called from several threads.

    Args:
        vocabulary: The model's vocabulary.
        engine: The grammar engine for arguments, where a spec names none.
        policy: How strictly tools may have their schemas kept.
        cache_bytes: What the compiled schemas may hold together, estimated; the least recently used go first.
        compile_seconds: How long one schema may take. For where requests are admitted: what was admitted there must
            compile everywhere, whatever the clock says, so engines compile without.
        request_seconds: After how long no further schema of a request is begun; for admission too. What is compiled by
            then is remembered.
        counts: Where the grammars that are asked for are counted; a count of its own where none is given.
        threads: How many threads fill the masks of a batch; None for as many as the process may use, up to eight.
        mask_cache_bytes: What the masks that LLGuidance has computed, and the states they belong to, may hold together
            for other calls to come (:mod:`constrained_k2.engines.state_cache`), estimated; 0 for none.

    Raises:
        InvalidRequest: An engine that is not known, or a budget or a number of threads that makes no sense.
    """

    def __init__(  # noqa: PLR0913 - its budgets
        self,
        vocabulary: Vocabulary,
        engine: EngineName = "llguidance",
        *,
        policy: StrictPolicy = DEFAULT_POLICY,
        cache_bytes: int = 256 << 20,
        compile_seconds: float | None = None,
        request_seconds: float | None = None,
        counts: CompileCounts | None = None,
        threads: int | None = None,
        mask_cache_bytes: int = 64 << 20,
    ) -> None:
        if type(cache_bytes) is not int or cache_bytes < _LEAST_CACHE_BYTES:
            raise InvalidRequest(
                f"a cache of {cache_bytes!r} bytes makes no sense",
                "cache_bytes",
                f"Use {_LEAST_CACHE_BYTES} or more",
            )
        # Made now rather than within some request's first mask and first header.
        vocabulary.unordinary_ids  # noqa: B018
        vocabulary.sorted_tokens  # noqa: B018
        self._threads = threads
        self._mask_cache_bytes = mask_cache_bytes
        self._compile_seconds = compile_seconds
        self.request_seconds = request_seconds
        self.vocabulary = vocabulary
        self.counts = counts or CompileCounts()
        self.policy = policy
        self.default_engine: EngineName = engine
        self._engines: dict[EngineName, Engine] = {}
        self.engine(engine)
        self._grammars: LeastRecentlyUsed[tuple[EngineName, str], _Compiled] = LeastRecentlyUsed(cache_bytes)
        self._stems: LeastRecentlyUsed[tuple[str, ...], HeaderStems] = LeastRecentlyUsed(_STEMS_BYTES)
        self._name_ends = NameEnds()
        self._preparing = threading.BoundedSemaphore(_PREPARED_AT_ONCE)
        self._phase_sets: dict[tuple[Any, ...], Mapping[Phase, TokenSet]] = {}  # at most one for each kind of request

    def compile(self, spec: ToolCallSpec, *, check: bool = True) -> CompiledToolCalls:
        """Make a request ready for matching.

        Args:
            spec: The request.
            check: Compile every tool's schema now, so that one without a grammar is found here. Without it a schema
                is compiled when the model calls its tool: what a server does behind its own admission check.

        Raises:
            UnsupportedSchema: A tool's schema has no grammar, or is strict and not kept whole (with ``check``).
            SchemaTooCostly: A tool's schema is over a budget (with ``check``).
        """
        compiled = CompiledToolCalls(self, spec)
        if check:
            compiled.check_all()
        return compiled

    def forget(self) -> None:
        """Drop what has been compiled; requests under way keep what they have."""
        self._grammars.clear()
        self._stems.clear()
        self._name_ends.clear()
        for engine in self._engines.values():
            engine.forget()

    @property
    def cached_bytes(self) -> int:
        """What the cached grammars hold together, estimated; at most ``cache_bytes``, or one grammar."""
        return self._grammars.spent

    @property
    def cached_mask_bytes(self) -> int:
        """What the remembered masks and states hold together, estimated; at most ``mask_cache_bytes``."""
        return sum(engine.cached_bytes for engine in self._engines.values())

    def engine(self, name: EngineName) -> Engine:
        """An engine, set up on first use.

        Raises:
            InvalidRequest: It is not known.
        """
        if name not in self._engines:
            self._engines[name] = self._make_engine(name)
        return self._engines[name]

    def grammar(
        self,
        schema: str,
        place: str,
        engine: EngineName | None = None,
        note: Callable[[float | None], None] | None = None,
    ) -> ArgumentGrammar:
        """The grammar of a tool's schema.

        Args:
            schema: JSON text; instances are narrowed to objects, since arguments are one.
            place: Where it stands in the request, for errors.
            engine: The engine; None for the compiler's.
            note: Called with what compiling it took in seconds, None where it was remembered; also before an error.

        Raises:
            UnsupportedSchema: There is none.
            SchemaTooCostly: It is over a budget.
        """
        name = engine or self.default_engine
        begun: float | None = None

        def build() -> tuple[_Compiled, int]:
            nonlocal begun
            begun = time.monotonic()
            return self._build(schema, self.engine(name))

        try:
            found = self._grammars.get((name, cache_key(schema)), build).outcome
        except TimeoutError as error:  # not remembered: the next request may find the server idle
            milliseconds = round((self._compile_seconds or 0) * 1000)
            raise SchemaTooCostly(
                f"{error} (over {milliseconds} ms)",
                place,
                "Simplify the schema, or try again",
                budget="compile_ms",
                limit=milliseconds,
                actual=milliseconds,
            ) from error
        finally:
            seconds = None if begun is None else time.monotonic() - begun
            self.counts.add(seconds)
            if note is not None:
                note(seconds)
        if isinstance(found, UnsupportedSchema | SchemaTooCostly):
            raise found.at_place(place)
        return found

    def _make_engine(self, name: EngineName) -> Engine:
        if name == "llguidance":
            from constrained_k2.engines.llguidance import LLGuidanceEngine

            return LLGuidanceEngine(self.vocabulary, self._threads, self._mask_cache_bytes)
        if name == "xgrammar":
            from constrained_k2.engines.xgrammar import XGrammarEngine

            return XGrammarEngine(self.vocabulary, seconds=self._compile_seconds)
        raise InvalidRequest(f"the engine {name!r} is not known", "engine", f"Use one of {', '.join(ENGINES)}")

    def _build(self, schema: str, engine: Engine) -> tuple[_Compiled, int]:
        """What comes of a schema, and what to charge for remembering it.

        Raises:
            TimeoutError: It took too long.
        """
        try:
            document = _read(schema)
            screen(document)
            _narrow_to_objects(document)
            text = json.dumps(document, separators=(",", ":"))

            def work() -> tuple[ArgumentGrammar, float]:
                begun = engine.clock()
                return engine.compile(text), engine.clock() - begun

            grammar, seconds = on_deep_stack(work, self._compile_seconds)
        except (UnsupportedSchema, SchemaTooCostly) as error:
            # Kept without where it was raised: that would keep the decoded schema, many times its text.
            error.__cause__ = error.__context__ = None
            return _Compiled(error.with_traceback(None), 0.0), _REFUSAL_BYTES
        except RecursionError:
            deep = UnsupportedSchema("the schema is nested too deeply to be read", "", "Flatten it")
            return _Compiled(deep, 0.0), _REFUSAL_BYTES
        return _Compiled(grammar, seconds), grammar.cost_bytes + len(schema)

    def compile_time(self, schema: str, engine: EngineName | None = None) -> float | None:
        """What compiling a schema took by the engine's clock, in seconds; None where it is not remembered."""
        found = self._grammars.peek((engine or self.default_engine, cache_key(schema)))
        return None if found is None else found.seconds

    def prepare(self, schema: str, engine: EngineName | None = None) -> None:
        """Begin to compile a schema that will be needed soon, in a thread; what is wrong with it is said when it is.

        Where as many as may be are being prepared already, nothing is begun: it is compiled when it is needed.
        """
        name = engine or self.default_engine
        if self.compile_time(schema, name) is not None or not self._preparing.acquire(blocking=False):
            return

        def work() -> None:
            try:
                self.grammar(schema, "", name)
            except ConstrainedK2Error:
                pass
            finally:
                self._preparing.release()

        # Not a Thread: its start waits until the new one runs, which then keeps the interpreter lock.
        try:
            _thread.start_new_thread(work, ())
        except RuntimeError:  # no thread is to be had: whoever needs the schema will say so
            self._preparing.release()

    def stems(self, names: tuple[str, ...]) -> HeaderStems:
        """What the headers of calls to these functions have in common, shared by all requests that declare them."""

        def build() -> tuple[HeaderStems, int]:
            stems = HeaderStems(names, self.vocabulary, self._name_ends)
            return stems, stems.cost_bytes

        return self._stems.get(names, build)

    def phase_sets(self, spec: ToolCallSpec) -> Mapping[Phase, TokenSet]:
        """The constant masks of a request, shared by all requests of its kind."""
        kind = (spec.choice, spec.max_calls, spec.thinking)
        if kind not in self._phase_sets:
            self._phase_sets[kind] = phase_sets(spec, self.vocabulary)
        return self._phase_sets[kind]


def cache_key(schema: str) -> str:
    """By what a schema is remembered: its text, or the digest of a long one, so that its refusal is small."""
    return schema if len(schema) <= 1024 else sha256(schema.encode(errors="backslashreplace")).hexdigest()


def _read(schema: str) -> dict[str, Any]:
    """A schema's text as Python values.

    Raises:
        UnsupportedSchema: It is no JSON object, or holds an integer too long for Python.
        RecursionError: It is nested too deeply.
    """
    try:
        document = json.loads(schema)
    except ValueError as error:
        raise UnsupportedSchema(f"the schema is no JSON that can be read: {error}", "", "Correct it") from None
    if not isinstance(document, dict):
        raise UnsupportedSchema(f"the schema is {kind_of_json(document)}", "", "Write it as a JSON object")
    return document


def _narrow_to_objects(document: Any) -> None:
    """Narrow a schema to objects, in place: arguments are always one.

    Raises:
        UnsupportedSchema: It takes no object.
    """
    declared = document.get("type", "object")
    if declared != "object" and not (isinstance(declared, list) and "object" in declared):
        raise UnsupportedSchema(
            f"the type is {str(declared)[:80]!r}, but arguments are always an object",
            "#/type",
            'Write "type": "object"',
            keyword="type",
        )
    if SchemaDocument(document).draft == "legacy" and "$ref" in document:
        # Siblings of a "$ref" mean nothing in old drafts, and the type would be one.
        document["allOf"] = [*document.get("allOf", ()), {"$ref": document.pop("$ref")}]
    document["type"] = "object"
