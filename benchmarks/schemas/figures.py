"""Runs arms over corpora and counts the results."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.schemas.arms import Arm, ArmName, Outcome, Work
from benchmarks.schemas.corpora import Case

NO_INSTANCE = "no value satisfies"
"""Part of a refusal because nothing satisfies the schema."""


@dataclass(slots=True)
class SuiteFigures:
    """An arm on the public suite."""

    groups: Counter[str] = field(default_factory=Counter)  # number of groups by status: `whole`, `relaxed`, `refused`
    empty: int = 0  # number of those that are refused because no value satisfies them
    instances: Counter[tuple[str, str, bool]] = field(default_factory=Counter)  # by verdict, status, accepted
    wrong: list[str] = field(default_factory=list)  # wrong verdicts on instances, nothing being relaxed

    @classmethod
    def of(cls, found: Iterable[tuple[Case, Outcome]]) -> "SuiteFigures":
        """Count an arm's results."""
        figures = cls()
        for case, outcome in found:
            figures.add(case, outcome)
        return figures

    def count(self, verdict: str, *, accepted: bool, status: str = "") -> int:
        """Count the instances of one kind."""
        return sum(
            number
            for (its_verdict, its_status, its_accepted), number in self.instances.items()
            if its_verdict == verdict and its_accepted == accepted and status in {"", its_status}
        )

    def add(self, case: Case, outcome: Outcome) -> None:
        """Count one group."""
        status = status_of(outcome)
        self.groups[status] += 1
        if outcome.refusal:
            self.empty += NO_INSTANCE in outcome.refusal
            return
        for instance, accepted in zip(case.instances, outcome.accepted, strict=True):
            self.instances["valid" if instance.valid else "invalid", status, accepted] += 1
            if status == "whole" and accepted != instance.valid:
                self.wrong.append(f"{case.name}: {instance.description} ({'accepted' if accepted else 'rejected'})")


def status_of(outcome: Outcome) -> str:
    """Return ``whole``, ``relaxed`` or ``refused``."""
    return "refused" if outcome.refusal else "relaxed" if outcome.relaxed else "whole"


def run_all(
    name: ArmName, cases: Iterable[Case], tokenizer: Path | None = None, *, masked: bool = False
) -> Iterator[tuple[Case, Outcome]]:
    """Run an arm over cases."""
    with Arm(name, tokenizer) as arm:
        for case in cases:
            yield case, arm.run(Work(case.schema, tuple(instance.text for instance in case.instances), masked))


def signature(case: Case, outcome: Outcome) -> str:
    """Summarize a group: its status, then a sign for each instance.

    ``+``: correct; ``n``: a valid instance was rejected; ``x``: an invalid one was accepted.
    """
    signs = {(True, True): "+", (False, False): "+", (True, False): "n", (False, True): "x"}
    verdicts = [
        signs[instance.valid, accepted] for instance, accepted in zip(case.instances, outcome.accepted, strict=False)
    ]
    return f"{status_of(outcome)} {''.join(verdicts)}".strip()


def is_no_worse(now: str, before: str) -> bool:
    """True if no instance of a group is worse than in the baseline."""
    ranks = ["refused", "relaxed", "whole"]
    status, _, verdicts = now.partition(" ")
    old_status, _, old_verdicts = before.partition(" ")
    if ranks.index(status) < ranks.index(old_status):
        return False
    if status == "whole" and "x" in verdicts:
        return False
    return all(new in {"+", old} for new, old in zip(verdicts, old_verdicts, strict=False))
