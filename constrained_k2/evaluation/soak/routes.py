"""The flags of each route that is tried."""

from collections.abc import Mapping, Sequence

from constrained_k2.evaluation.server import BACKEND_FLAGS, CONSTRAINED_FLAGS

ROUTES: Mapping[str, Sequence[str]] = {
    "backend": BACKEND_FLAGS,
    "processor": CONSTRAINED_FLAGS,
}
