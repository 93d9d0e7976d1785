"""Patch of ``SchedulerStats``: a field that carries counts to the front end (:mod:`.transport`).

vLLM binds the class in many modules and encodes it by its dataclass fields and annotations, so a subclass would not
reach them all; and its generated ``__init__`` sets no field that is added later, so the class holds the default.
"""

from dataclasses import dataclass, fields
from typing import Any

from vllm.v1.metrics.stats import SchedulerStats

from constrained_k2.vllm_plugin.shared.transport import FIELD


@dataclass
class _Field:
    constrained_k2: dict[str, Any] | None = None


def stats_fields(original: Any) -> Any:
    """Give ``SchedulerStats`` a field that its constructor does not take."""
    setattr(SchedulerStats, FIELD, None)  # what instances have that vLLM's __init__ makes
    SchedulerStats.__annotations__[FIELD] = _Field.__annotations__[FIELD]  # its type, for msgspec
    return {**original, FIELD: fields(_Field)[0]}
