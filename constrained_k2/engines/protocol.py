"""The whole contract that a grammar engine must meet. It sees arguments only: no marker, no name, no index."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from constrained_k2.bitmask import BitmaskRows
from constrained_k2.errors import ConstrainedK2Error
from constrained_k2.schema.coverage import Coverage


class ArgumentMatcher(Protocol):
    """The state of one call's arguments being written. Owned by one request, used by one thread at a time."""

    def fill(self, row: npt.NDArray[np.int32], address: int = 0) -> None:
        """Write the allowed tokens into a bitmask row, int32 ``[words]``.

        ``<|tool_call_end|>`` is among them exactly when the JSON is complete; no other special token ever is.

        Args:
            row: The row, contiguous.
            address: Of the row, where the caller has it at hand (numpy takes a microsecond to say); 0 where not.

        Raises:
            SchemaTooCostly: The engine hit one of its own limits.
        """

    def known_mask(self) -> npt.NDArray[np.int32] | None:
        """The mask, int32 ``[words]``, where it is at hand, not to be written to; else None: see :meth:`fill`."""

    @staticmethod
    def fill_batch(batch: Sequence[tuple[Any, int]], rows: BitmaskRows) -> list[tuple[int, ConstrainedK2Error]]:
        """Fill the rows of several matchers of this class and of one engine.

        Args:
            batch: Matchers, each at most once, and the row of each, each at most once.
            rows: The bitmask.

        Returns:
            The rows that could not be filled, and why. All others are filled.
        """

    def forced_tokens(self) -> list[int]:
        """The tokens that every way to go on begins with, as the model's tokenizer most likely spells them.

        Only what is worth proposing: fewer than the grammar forces where the spelling is not clear yet.
        """

    def accept(self, token_id: int) -> bool:
        """Take one ordinary token. False leaves the state as it was.

        Raises:
            SchemaTooCostly: The engine hit one of its own limits.
        """

    def rollback(self, count: int) -> None:
        """Take back the last ``count`` accepted tokens; the caller never asks for more than were accepted."""

    def is_complete(self) -> bool:
        """Whether the arguments may end here."""

    def fork(self) -> "ArgumentMatcher":
        """An independent copy."""


class ArgumentGrammar(Protocol):
    """A compiled schema; shared by all requests, safe to use from several threads."""

    @property
    def cost_bytes(self) -> int:
        """An estimate of the memory it holds, for the cache's budget."""

    @property
    def coverage(self) -> Coverage:
        """What became of each keyword of the schema."""

    def matcher(self, place: str) -> ArgumentMatcher:
        """A matcher at the start of the arguments.

        Args:
            place: Where the schema stands in this request, for errors.
        """


class Engine(Protocol):
    """Compiles schemas."""

    @property
    def name(self) -> str:
        """As :class:`constrained_k2.Compiler` takes it."""

    @property
    def cached_bytes(self) -> int:
        """What it remembers for calls to come besides the grammars, estimated."""

    @property
    def clock(self) -> Callable[[], float]:
        """Tells in seconds what :meth:`compile` takes: processor time of the calling thread where that does it all."""

    def forget(self) -> None:
        """Drop that."""

    def compile(self, schema: str) -> ArgumentGrammar:
        """Compile a schema whose instances are JSON objects.

        Args:
            schema: JSON text.

        Raises:
            UnsupportedSchema: The engine has no grammar for it.
        """
