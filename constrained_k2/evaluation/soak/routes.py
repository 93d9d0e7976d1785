"""The flags of each route that is tried."""

from collections.abc import Mapping, Sequence

from constrained_k2.evaluation.server import CONSTRAINED_FLAGS

ROUTES: Mapping[str, Sequence[str]] = {
    "processor": CONSTRAINED_FLAGS,
}
