"""What the matcher of a turn is made over, and what may narrow its masks."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from constrained_k2.bitmask import TokenSet
from constrained_k2.engines.protocol import ArgumentMatcher
from constrained_k2.header import Headers
from constrained_k2.phases import Phase
from constrained_k2.tools import ToolCallSpec
from constrained_k2.vocabulary import Vocabulary

if TYPE_CHECKING:
    from constrained_k2.matcher import ToolCallMatcher


class CallGrammar(Protocol):
    """What a matcher needs of a compiled request."""

    @property
    def spec(self) -> ToolCallSpec:
        """The request."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary it is compiled for."""

    @property
    def phase_sets(self) -> Mapping[Phase, TokenSet]:
        """The constant phases' tokens."""

    def headers(self, call: int) -> Headers:
        """The headers that the turn's ``call``-th call may have."""

    def prepare(self, name: str) -> None:
        """Begin to make what :meth:`arguments` will need, for the one function whose header can still come of it."""

    def is_prepared(self, name: str) -> bool:
        """Whether what :meth:`arguments` will need is made."""

    def arguments(self, name: str) -> ArgumentMatcher:
        """A matcher at the start of a function's arguments."""


class Narrowing(Protocol):
    """Takes tokens out of masks, which stay what a sampler is offered; what is legal does not change."""

    def token_set(self, matcher: "ToolCallMatcher", tokens: TokenSet) -> TokenSet:
        """What is left of a constant set: some of ``tokens``, and not none."""

    def narrow(self, matcher: "ToolCallMatcher", row: npt.NDArray[np.int32]) -> None:
        """Take tokens out of a mask inside the arguments, int32 ``[words]``, but not all."""

    def roll_back(self, num_tokens: int) -> None:
        """Forget what came behind the first ``num_tokens`` tokens."""

    def fork(self) -> "Narrowing":
        """An independent copy."""
