"""Lets Triton's interpreter run kernels whose masks are combined conditions."""

from collections.abc import Callable
from typing import Any

import numpy as np
from triton.runtime import interpreter


class _BooleanMasks:
    """Triton's interpreter refuses masks of int8 or int32, which it makes itself of combined conditions."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.store = self._with_boolean_mask(library.store, 2)
        self.load = self._with_boolean_mask(library.load, 1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    @staticmethod
    def _with_boolean_mask(access: Callable[..., Any], position: int) -> Callable[..., Any]:
        def accessed(*args: Any) -> Any:
            mask = args[position]
            if isinstance(mask, np.ndarray) and mask.dtype != np.bool_:
                args = (*args[:position], mask.astype(np.bool_), *args[position + 1 :])
            return access(*args)

        return accessed


def accept_combined_masks() -> None:
    """Have the interpreter of this process take such masks as booleans. Found with triton 3.9.0."""
    if not isinstance(interpreter._interpreter, _BooleanMasks):  # noqa: SLF001 - it offers no setting
        interpreter._interpreter = _BooleanMasks(interpreter._interpreter)  # noqa: SLF001
