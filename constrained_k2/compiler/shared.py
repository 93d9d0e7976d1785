"""Builds and caches, within budgets, the grammars and token sets that requests share."""

import _thread
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal, NamedTuple

from constrained_k2.compiler.cache import CompileCounts, LeastRecentlyUsed, RecentKeys
from constrained_k2.compiler.checked_schema import checked, noted
from constrained_k2.engines.protocol import ArgumentEncoding, ArgumentGrammar, Engine
from constrained_k2.errors import (
    ConstrainedK2Error,
    InvalidRequest,
    SchemaTooCostly,
    UnsupportedSchema,
    missing_dependency,
)
from constrained_k2.request.answer_format import AnswerKind
from constrained_k2.request.spec import ENGINES, EngineName, ToolCallSpec
from constrained_k2.request.strictness import DEFAULT_POLICY, StrictPolicy
from constrained_k2.request.undeclared_calls import CALL_THRESHOLD, UndeclaredCalls
from constrained_k2.schema.undeclared_keys import DEFAULT, UndeclaredKeys, read_undeclared_keys
from constrained_k2.threads.compile_pool import PoolBusy, run_bounded
from constrained_k2.turn.call_id import CallIdTrie, NameEndings
from constrained_k2.turn.phases import TurnTable, turn_table
from constrained_k2.turn.transitions import Transitions
from constrained_k2.vocabulary.vocabulary import Vocabulary

_MAX_PRECOMPILING = 4
_MIN_CACHE_BYTES = 1 << 20
_TRIES_BYTES = 32 << 20
_MAX_TIMEOUTS = 1024
_REFUSAL_BYTES = 2048  # estimate for a refusal and its key


@dataclass(frozen=True, slots=True)
class GrammarOptions:
    """The options that a grammar depends on besides its text and its engine."""

    root: Literal["object", "any"] = "object"  # arguments are always an object; an answer may be any JSON value
    kind: AnswerKind = "json"  # the language of the text; "regex" and "lark" only for answers and custom tools
    undeclared_keys: UndeclaredKeys | None = None  # None for the compiler's default
    encoding: ArgumentEncoding = "json"  # the wire format of arguments; an answer is always JSON


DEFAULT_OPTIONS = GrammarOptions()


_Key = tuple[EngineName, GrammarOptions, str]


class _Compiled(NamedTuple):
    outcome: ArgumentGrammar | UnsupportedSchema | SchemaTooCostly
    seconds: float  # compile time by the engine's clock


class SharedGrammars:
    """Compiled schemas, call-id tries and turn tables. :class:`constrained_k2.Compiler` documents the arguments."""

    def __init__(  # noqa: PLR0913 - its budgets
        self,
        vocabulary: Vocabulary,
        engine: EngineName = "llguidance",
        *,
        policy: StrictPolicy = DEFAULT_POLICY,
        undeclared_keys: UndeclaredKeys = DEFAULT,
        cache_bytes: int = 256 << 20,
        compile_seconds: float | None = None,
        request_seconds: float | None = None,
        retry_seconds: float = 0.0,
        counts: CompileCounts | None = None,
        threads: int | None = None,
        mask_cache_bytes: int = 64 << 20,
        undeclared_calls: UndeclaredCalls = "nearest",
        call_threshold: float = CALL_THRESHOLD,
    ) -> None:
        if type(cache_bytes) is not int or cache_bytes < _MIN_CACHE_BYTES:
            problem = f"a cache of {cache_bytes!r} bytes is too small"
            raise InvalidRequest(problem, "cache_bytes", f"Use {_MIN_CACHE_BYTES} or more")
        # Computed now rather than within some request's first mask or first call id.
        vocabulary.unordinary_ids  # noqa: B018
        vocabulary.sorted_tokens  # noqa: B018
        if undeclared_calls == "decline":
            vocabulary.spelled_tokens  # noqa: B018
        self.vocabulary = vocabulary
        self.policy = policy
        self.undeclared_keys = read_undeclared_keys(undeclared_keys)
        self.undeclared_calls = undeclared_calls
        self.call_threshold = call_threshold
        self.call_index = vocabulary.format.call_index
        self.request_seconds = request_seconds
        self.counts = counts or CompileCounts()
        self.default_engine: EngineName = engine
        self._threads = threads
        self._mask_cache_bytes = mask_cache_bytes
        self._compile_seconds = compile_seconds
        self._engines: dict[EngineName, Engine] = {}
        self._grammars: LeastRecentlyUsed[_Key, _Compiled] = LeastRecentlyUsed(cache_bytes)
        self._timeouts: RecentKeys[_Key] = RecentKeys(retry_seconds, _MAX_TIMEOUTS)
        self._tries: LeastRecentlyUsed[tuple[str, ...], CallIdTrie] = LeastRecentlyUsed(_TRIES_BYTES)
        self._name_endings: NameEndings = {}
        self._transitions = Transitions(vocabulary)
        self._turn_tables: dict[tuple[Any, ...], TurnTable] = {}  # one for each kind of request
        self._precompiling = threading.BoundedSemaphore(_MAX_PRECOMPILING)
        self.engine(engine)

    @property
    def cached_bytes(self) -> int:
        """Estimated size of the cached grammars; at most ``cache_bytes``, or one grammar."""
        return self._grammars.spent

    def forget(self) -> None:
        """Drop the caches. Requests in progress keep what they use."""
        self._grammars.clear()
        self._timeouts.clear()
        self._tries.clear()
        self._name_endings.clear()
        for engine in self._engines.values():
            engine.forget()

    def engine(self, name: EngineName) -> Engine:
        """An engine, created on first use."""
        if name not in self._engines:
            self._engines[name] = self._make_engine(name)
        return self._engines[name]

    def _make_engine(self, name: EngineName) -> Engine:
        if name == "llguidance":
            from constrained_k2.engines.llguidance.engine import LLGuidanceEngine

            engine = LLGuidanceEngine(self.vocabulary, self._threads, self._mask_cache_bytes)
            engine.mask_cache.on_empty_mask = self.counts.add_empty_mask
            return engine
        if name == "xgrammar":
            try:
                from constrained_k2.engines.xgrammar.engine import XGrammarEngine
            except ModuleNotFoundError as error:
                raise InvalidRequest(missing_dependency(error), "engine") from error
            return XGrammarEngine(self.vocabulary, seconds=self._compile_seconds)
        raise InvalidRequest(f"unknown engine {name!r}", "engine", f"Use {' or '.join(map(repr, ENGINES))}")

    def grammar(
        self,
        schema: str,
        location: str,
        engine: EngineName | None = None,
        note: Callable[[float | None], None] | None = None,
        options: GrammarOptions = DEFAULT_OPTIONS,
    ) -> ArgumentGrammar:
        """The grammar of a schema (JSON text), regex or Lark grammar (``options.kind``), cached or compiled now.

        ``note`` is called with the seconds that compiling took, or None for a cache hit; also before an error.

        Raises:
            UnsupportedSchema: The schema has no grammar.
            SchemaTooCostly: The schema is over a budget.
        """
        name = engine or self.default_engine
        key = (name, options, cache_key(schema))
        begun: float | None = None

        def build() -> tuple[_Compiled, int]:
            nonlocal begun
            if key in self._timeouts:
                raise TimeoutError("the schema took too long to compile a moment ago")
            begun = time.monotonic()
            try:
                return self._build(schema, self.engine(name), options)
            except PoolBusy:
                raise
            except TimeoutError:
                self._timeouts.add(key)
                raise

        try:
            found = self._grammars.get(key, build).outcome
        except TimeoutError as error:  # cached only for a while: a later request may find the server idle
            limit = round((self._compile_seconds or 0) * 1000)
            problem, remedy = f"{error} (over {limit} ms)", "Simplify the schema, or try again"
            raise SchemaTooCostly(problem, location, remedy, "compile_ms", limit, limit) from error
        finally:
            seconds = None if begun is None else time.monotonic() - begun
            self.counts.add(seconds)
            if note is not None:
                note(seconds)
        if isinstance(found, UnsupportedSchema | SchemaTooCostly):
            raise found.at_location(location)
        return found

    def compile_time(
        self, schema: str, engine: EngineName | None = None, options: GrammarOptions = DEFAULT_OPTIONS
    ) -> float | None:
        """Seconds that compiling a schema took by the engine's clock; None if it is not cached."""
        found = self._grammars.peek((engine or self.default_engine, options, cache_key(schema)))
        return None if found is None else found.seconds

    def precompile(
        self, schema: str, engine: EngineName | None = None, options: GrammarOptions = DEFAULT_OPTIONS
    ) -> None:
        """Start compiling a schema in one of at most four background threads.

        :meth:`grammar` raises its error.
        """
        name = engine or self.default_engine
        if self.compile_time(schema, name, options) is not None:
            return
        if not self._precompiling.acquire(blocking=False):
            return

        def work() -> None:
            try:
                with suppress(ConstrainedK2Error):
                    self.grammar(schema, "", name, options=options)
            finally:
                self._precompiling.release()

        # Not a threading.Thread: start() waits until the new thread runs, which then holds the GIL.
        try:
            _thread.start_new_thread(work, ())
        except RuntimeError:  # no more threads: grammar() compiles it
            self._precompiling.release()

    def call_id_trie(self, names: tuple[str, ...]) -> CallIdTrie:
        """The trie of call headers for a request's functions, from the cache or built now."""

        def build() -> tuple[CallIdTrie, int]:
            trie = CallIdTrie(names, self.vocabulary, self._name_endings)
            return trie, trie.cost_bytes

        return self._tries.get(names, build)

    def turn_table(self, spec: ToolCallSpec, *, declines: bool) -> TurnTable:
        """The constant masks of a request's phases, and the transitions between them."""
        calls = 2 if spec.max_calls is None else min(spec.max_calls, 2)  # any larger number has the same table
        kind = (spec.choice, calls, spec.thinking, spec.answer is not None, declines)
        if kind not in self._turn_tables:
            self._turn_tables[kind] = turn_table(spec, self._transitions, declines=declines)
        return self._turn_tables[kind]

    def _build(self, schema: str, engine: Engine, options: GrammarOptions) -> tuple[_Compiled, int]:
        """Compile a schema: the grammar or refusal, and its cost in bytes; raises TimeoutError if it takes too long."""
        try:
            kind, undeclared_keys = options.kind, options.undeclared_keys or self.undeclared_keys
            text, note = schema, None
            if kind == "json":
                is_object = options.root == "object"
                text, note = checked(schema, is_object=is_object, undeclared_keys=undeclared_keys)

            def work() -> tuple[ArgumentGrammar, float]:
                begun = engine.clock()
                if kind == "json":
                    grammar = engine.compile(text, undeclared_keys, options.encoding)
                    if note is not None:
                        grammar.coverage = noted(grammar.coverage, note)
                else:
                    grammar = engine.compile_text(kind, text, options.encoding if options.root == "object" else None)
                return grammar, engine.clock() - begun

            grammar, seconds = run_bounded(work, self._compile_seconds)
        except (UnsupportedSchema, SchemaTooCostly) as error:
            # Cached without traceback and context: those hold the decoded schema, many times the size of its text.
            error.__cause__ = error.__context__ = None
            return _Compiled(error.with_traceback(None), 0.0), _REFUSAL_BYTES
        except RecursionError:
            deep = UnsupportedSchema("the schema is nested too deeply", "", "Flatten it")
            return _Compiled(deep, 0.0), _REFUSAL_BYTES
        key: _Key = (engine.name, options, cache_key(schema))
        own = len(schema)
        grammar.on_growth = lambda cost: self._grammars.charge(key, cost + own)  # keeps the cache's accounting exact
        return _Compiled(grammar, seconds), grammar.cost_bytes + own


def cache_key(schema: str) -> str:
    """The schema's text, or the digest of a long one, so that caching its refusal costs little."""
    return schema if len(schema) <= 1024 else sha256(schema.encode(errors="backslashreplace")).hexdigest()
