"""A state of the token-level DFA of a call's arguments, with its cached mask and the next states.

{"city": "Os and {"city": "Ber are one state if any string is allowed: ordinary text leads back to it. The DFA is in
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
        representative: Another state that has the same mask and caches it for both; None if there is none.
        is_shared: True if all calls in this parser state use this object; False if it belongs to one call.
        self_loop_classes: Bits of the token classes that leave the parser state unchanged: an allowed token of one of
            these classes leads back to this state.
        free_loop_classes: ``self_loop_classes`` if the grammar allows every token of these classes here; else 0.
        next: The next states by token id; empty unless this state is shared.
        row: The mask, int32 ``[words]``; None if not cached.
        rows_after: Masks by the previous token's id, if the mask depends on it.
        is_complete: True if the arguments may end here; None if unknown.
        visits: How often LLGuidance computed the mask.
        allowed: The tokens that the grammar accepts, int32 ``[words]``; None unless computed without LLGuidance.
        is_direct: True if ``allowed`` is computed, False if only LLGuidance can compute it, None before the attempt.
        forced: The residual if the next bytes are forced; else None. LLGuidance's mask is then narrower than
            ``allowed``, since it has only the canonical tokenization of these bytes.
    """

    __slots__ = ("allowed", "forced", "free_loop_classes", "is_complete", "is_direct", "is_shared", "next", "position",
                 "representative", "row", "rows_after", "self_loop_classes", "visits")  # fmt: skip

    def __init__(self, position: Position | None, representative: "DfaState | None" = None) -> None:
        self.position = position
        self.representative = representative
        self.is_shared = position is not None and position.is_shared
        # As a plain integer: the operators of a flag are slow.
        self.self_loop_classes = 0 if position is None else int(position.self_loop_classes)
        self.free_loop_classes = self.self_loop_classes if self.is_shared else 0
        self.next: dict[int, DfaState] = {}
        self.row: npt.NDArray[np.int32] | None = None
        self.rows_after: dict[int, npt.NDArray[np.int32]] | None = None
        self.is_complete: bool | None = None
        self.visits = 0
        self.allowed: npt.NDArray[np.int32] | None = None
        self.is_direct: bool | None = None
        self.forced: Residual | None = None
