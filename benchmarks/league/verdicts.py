"""The verdict on each schema in each arm, and the sums of an arm."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from benchmarks.schemas.arms import ArmName, Outcome
from benchmarks.schemas.corpora import Case

Status = Literal["passing", "unsatisfiable", "refused", "timeout", "died", "invalid accepted", "valid rejected"]
STATUSES: tuple[Status, ...] = get_args(Status)
_NO_INSTANCE = "no value satisfies"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of an arm on one schema, as MaskBench counts it.

    Attributes:
        name: The schema's id.
        status: ``passing`` if the arm takes the schema, every valid instance and no invalid one; else the first of
            the others that holds. ``unsatisfiable``: refused because no value satisfies the schema.
        reason: Why it is refused or died.
        relaxed: What the arm itself names as not enforced.
        invalid: Number of invalid instances accepted.
        rejected: Number of valid instances rejected.
        builtin: True if ours uses the engine's converter.
        create_ms: Time to build the grammar and a first matcher.
    """

    name: str
    status: Status
    reason: str
    relaxed: tuple[str, ...]
    invalid: int
    rejected: int
    builtin: bool
    create_ms: float

    @classmethod
    def of(cls, case: Case, outcome: Outcome) -> "Verdict":
        """Judge an arm's outcome."""
        pairs = list(zip(case.instances, outcome.accepted, strict=False))
        invalid = sum(accepted and not instance.valid for instance, accepted in pairs)
        rejected = sum(instance.valid and not accepted for instance, accepted in pairs)
        status: Status = "passing"
        if outcome.ran_out:
            status = "timeout"
        elif outcome.refusal:
            status = "unsatisfiable" if _NO_INSTANCE in outcome.refusal else "refused"
        elif outcome.died:
            status = "died"
        elif invalid:
            status = "invalid accepted"
        elif rejected:
            status = "valid rejected"
        reason, created = outcome.refusal or outcome.died, round(outcome.create_ms, 2)
        return cls(case.name, status, reason, outcome.relaxed, invalid, rejected, outcome.builtin, created)

    def to_json(self, arm: ArmName) -> dict[str, Any]:
        """The verdict as a line of the file of statuses."""
        return {"arm": arm, **asdict(self)}


@dataclass(slots=True)
class Sums:
    """An arm's verdicts and mask times."""

    verdicts: list[Verdict] = field(default_factory=list)
    masks: list[np.ndarray[Any, np.dtype[np.float32]]] = field(default_factory=list)

    def add(self, verdict: Verdict, mask_us: tuple[float, ...]) -> None:
        """Count a schema."""
        self.verdicts.append(verdict)
        self.masks.append(np.array(mask_us, np.float32))

    @property
    def statuses(self) -> Counter[Status]:
        """Number of schemas by status."""
        return Counter(verdict.status for verdict in self.verdicts)

    @property
    def passing(self) -> float:
        """Share of the schemas that pass."""
        return self.statuses["passing"] / len(self.verdicts)

    @property
    def silent(self) -> list[Verdict]:
        """The schemas with an accepted invalid instance where the arm names nothing that it leaves out."""
        return [verdict for verdict in self.verdicts if verdict.invalid and not verdict.relaxed]

    def create_ms(self) -> tuple[float, float, float]:
        """Median, 99th percentile and maximum of the time to a first matcher, of the schemas taken."""
        return _quantiles(np.array([verdict.create_ms for verdict in self._taken()]))

    def mask_us(self) -> tuple[float, float, float]:
        """Median, 99th percentile and maximum of the time of a mask."""
        return _quantiles(np.concatenate(self.masks) if self.masks else np.empty(0))

    def _taken(self) -> Iterator[Verdict]:
        return (verdict for verdict in self.verdicts if not verdict.reason)


def _quantiles(values: np.ndarray[Any, Any]) -> tuple[float, float, float]:
    if not values.size:
        return 0.0, 0.0, 0.0
    half, most = np.quantile(values, (0.5, 0.99))
    return float(half), float(most), float(values.max())
