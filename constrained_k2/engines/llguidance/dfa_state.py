"""A DFA state of a call's arguments: its mask, if cached, and the next states by token.

{"city": "Os and {"city": "Ber are one state if any string is allowed, and plain tokens lead back to it. The DFA is in
:mod:`~constrained_k2.engines.llguidance.mask_cache`.
"""

import numpy as np
import numpy.typing as npt

from constrained_k2.engines.llguidance.direct.residual import Residual
from constrained_k2.engines.llguidance.position import Position


class DfaState:
    """One DFA state of a call's arguments.

    Attributes:
        position: The parser state; None without a state model.
        twin: The representative, whose mask this state shares; None if there is no other.
        is_shared: True if all calls in this parser state share it; else it belongs to one call.
        stays: Token classes, as bits: allowed tokens of these classes lead back to this state.
        loops: As ``stays``, of classes whose tokens are all allowed: inside a string of any characters.
        next: The states after tokens, by token id; only in shared states.
        row: The mask, int32 ``[words]``; None if not cached.
        rows_after: Masks by the previous token's id, if the mask depends on it.
        is_complete: True if the arguments may end here; None if unknown.
        visits: How often LLGuidance computed the mask.
        allowed: What the grammar accepts, int32 ``[words]``, if known without LLGuidance.
        is_direct: True if ``allowed`` is known; None if that was not tried yet.
        forced: The residual if bytes are forced: then masks are narrower than ``allowed``. Else None.
    """

    __slots__ = ("allowed", "forced", "is_complete", "is_direct", "is_shared", "loops", "next", "position", "row",
                 "rows_after", "stays", "twin", "visits")  # fmt: skip

    def __init__(self, position: Position | None, twin: "DfaState | None" = None) -> None:
        self.position = position
        self.twin = twin
        self.is_shared = position is not None and position.is_shared
        self.stays = 0 if position is None else int(position.stays)  # the operators of a flag are slow
        self.loops = self.stays if self.is_shared else 0
        self.next: dict[int, DfaState] = {}
        self.row: npt.NDArray[np.int32] | None = None
        self.rows_after: dict[int, npt.NDArray[np.int32]] | None = None
        self.is_complete: bool | None = None
        self.visits = 0
        self.allowed: npt.NDArray[np.int32] | None = None
        self.is_direct: bool | None = None
        self.forced: Residual | None = None
