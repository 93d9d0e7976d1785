"""Records which keywords are not enforced exactly, and limits the cost of expanding a schema."""

from typing import Literal

from constrained_k2.errors import SchemaTooCostly
from constrained_k2.schema.document import SchemaDocument

NoteStatus = Literal["narrowed", "read_as", "relaxed"]
_MAX_MEETINGS = 30_000  # pairs of shapes that may be intersected for one schema; bounds the time
_MAX_REASONS = 8  # max reasons per status of a keyword: each of a schema's patterns may add one to each keyword


class Notes:
    """The notes on one schema, and the cost of its expansion so far."""

    def __init__(self, document: SchemaDocument) -> None:
        self._document = document
        self.found: dict[str, list[tuple[NoteStatus, str]]] = {}  # pointer of a keyword -> statuses with reasons
        self.narrowings = 0  # times that something was narrowed, or that narrowed shapes were used again
        self._costly: set[str] = set()  # pointers of the keywords that are relaxed because they cost too much
        self._meetings, self.max_meetings = 0, _MAX_MEETINGS

    def add(self, pointer: str, status: NoteStatus, reason: str, *, for_cost: bool = False) -> None:
        """Record that a keyword is not enforced exactly. Earlier notes on it are kept.

        ``for_cost``: a budget is the cause, so fewer alternatives elsewhere may help.
        """
        found = self.found.setdefault(pointer, [])
        if (status, reason) not in found and sum(known == status for known, _ in found) < _MAX_REASONS:
            found.append((status, reason))
        self.narrowings += status == "narrowed"
        if for_cost:
            self._costly.add(pointer)

    @property
    def relaxed_for_cost(self) -> int:
        """The number of keywords that are relaxed because their alternatives cost too much."""
        return len(self._costly)

    def spend(self, meetings: int) -> None:
        """Count intersected pairs of shapes, or work that costs as much."""
        self._meetings += meetings
        if self._meetings > self.max_meetings:
            problem = f"its anyOf, oneOf, allOf and not combine to more than {self.max_meetings} pairs of alternatives"
            raise self.too_costly(problem, "meetings", self.max_meetings)

    def too_costly(self, problem: str, budget: str, limit: int) -> SchemaTooCostly:
        """The error for a limit that this schema exceeds."""
        remedy = "Simplify its anyOf, oneOf, allOf and not"
        return SchemaTooCostly(problem, self._document.location, remedy, budget=budget, limit=limit, actual=limit + 1)
