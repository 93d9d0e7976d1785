"""The interfaces of grammar engines, compiled grammars, and matchers of arguments and answers.

grammar = engine.compile('{"type": "object"}')     once per schema, shared by all requests
matcher = grammar.matcher("tools[0]")              once per call
matcher.fill(row), matcher.accept(token_id)        once per token
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from constrained_k2.errors import ConstrainedK2Error
from constrained_k2.grammar.lark.text_grammar import TextGrammar
from constrained_k2.grammar.plan.nodes import Plan
from constrained_k2.request.spec import EngineName
from constrained_k2.schema.coverage import Coverage
from constrained_k2.schema.undeclared_keys import UndeclaredKeys
from constrained_k2.vocabulary.bitmask import BitmaskRows

ArgumentEncoding = Literal["json", "xtml"]
"""How arguments are written: as one JSON object, or a block for each member (:mod:`constrained_k2.formats.kimi_k3`)."""

Failures = list[tuple[int, ConstrainedK2Error]]  # the indices of rows that could not be filled, and their errors


class ArgumentMatcher(Protocol):
    """The parser state of one call's arguments, or of an answer. Used by one request, and one thread at a time."""

    @property
    def text_grammar(self) -> TextGrammar | None:
        """The parsed rules of a client's grammar; None for a schema, or if this package cannot parse all rules."""

    @property
    def plan(self) -> Plan | None:
        """The plan of the grammar in use, which a fallback may have replaced; None for a client's grammar."""

    def fill(self, row: npt.NDArray[np.int32], address: int = 0) -> None:
        """Write the allowed tokens into a bitmask row, int32 ``[words]``, contiguous.

        The format's ``engine_stop`` is allowed exactly if the text may end here. No other special token is ever
        allowed, except the format's ``argument_markers`` in arguments. ``address`` is the row's memory address if the
        caller knows it (numpy takes a microsecond to return it), else 0.

        Raises:
            SchemaTooCostly: The engine hit one of its limits.
        """

    def mask_without_engine(self) -> npt.NDArray[np.int32] | None:
        """Return the mask, int32 ``[words]``, if it needs no engine call; else None: use :meth:`fill`. Read-only.

        The mask is cached, or computed from the grammar's model on the calling thread. The first visit to a parser
        state may walk the whole vocabulary (1.4 ms inside a bounded integer, Kimi K2). An array that numpy marks as not
        writeable never changes, and equal parser states share it.
        """

    @staticmethod
    def fill_batch(batch: Sequence[tuple[Any, int]], rows: BitmaskRows) -> Failures:
        """Fill one row for each of several distinct matchers, all of this class and of one engine."""

    def forced_tokens(self) -> list[int]:
        """Return the forced tokens, for drafts; fewer if their tokenization is not certain yet.

        Raises as :meth:`fill` does.
        """

    def accept(self, token_id: int) -> bool:
        """Accept an ordinary token or an argument marker; False leaves the state unchanged. Raises as :meth:`fill`."""

    def written(self) -> Sequence[int]:
        """Return all accepted tokens; callers do not change them."""

    def rollback(self, count: int) -> None:
        """Undo the last ``count`` accepted tokens; at most as many as were accepted."""

    def is_complete(self) -> bool:
        """Return True if the arguments may end here. Raises as :meth:`fill` does."""

    def fork(self) -> "ArgumentMatcher":
        """Return an independent copy."""


class ArgumentGrammar(Protocol):
    """A compiled schema, or client's grammar. Shared by all requests and thread-safe."""

    on_growth: Callable[[int], None]  # called with ``cost_bytes`` after it has changed
    coverage: Coverage  # says for each keyword of the schema whether it is enforced

    @property
    def cost_bytes(self) -> int:
        """Estimated memory, for the cache's budget; it may grow with use."""

    def matcher(self, location: str, *, may_relax: bool = False) -> ArgumentMatcher:
        """Return a matcher at the start of the arguments.

        Args:
            location: The schema's location in the request, for errors.
            may_relax: True if a fallback, used if the engine fails inside a call, may allow more than the schema.
        """


class Engine(Protocol):
    """Compiles schemas, and clients' grammars."""

    name: EngineName  # as :class:`constrained_k2.Compiler` takes it

    @property
    def cached_bytes(self) -> int:
        """Estimated bytes of the engine's caches, without the grammars."""

    @property
    def clock(self) -> Callable[[], float]:
        """Clock in seconds that times :meth:`compile`: thread CPU time if the calling thread does all the work."""

    def forget(self) -> None:
        """Clear the engine's caches."""

    def compile(
        self, schema: str, undeclared_keys: UndeclaredKeys = "allow", encoding: ArgumentEncoding = "json"
    ) -> ArgumentGrammar:
        """Compile a schema (JSON text). XTML arguments are always objects, so alternatives of other types are ignored.

        ``forbid`` narrows objects with ``properties`` to the keys that their schema declares
        (:mod:`constrained_k2.schema.undeclared_keys`).

        Raises:
            UnsupportedSchema: The engine has no grammar for it.
            SchemaTooCostly: The schema is over a budget.
        """

    def compile_text(
        self, kind: Literal["regex", "lark"], text: str, encoding: ArgumentEncoding | None = None
    ) -> ArgumentGrammar:
        """Compile a client's regular expression or Lark grammar.

        It matches an answer or, with ``encoding``, a custom tool's input inside its arguments.

        Raises as :meth:`compile` does.
        """
