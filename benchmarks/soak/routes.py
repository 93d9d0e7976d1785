"""The server flags of each route."""

from collections.abc import Mapping, Sequence

from constrained_k2.evaluation.server import BACKEND_FLAGS, CONSTRAINED_FLAGS

ROUTES: Mapping[str, Sequence[str]] = {
    "structured_output": BACKEND_FLAGS,
    "logits_processor": CONSTRAINED_FLAGS,
}
