"""Ranks the places that fight the model, from the log of overrides: ``constrained-k2 explain --log FILE…``."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from constrained_k2.errors import InvalidRequest
from constrained_k2.explain.advice import advice
from constrained_k2.explain.log_lines import Line, OverrideLine, TurnLine, general_pointer

_MAX_LINE = 1 << 20  # bytes of a line
_MAX_PLACES = 20_000  # places that are told apart; further ones are counted together
_MAX_TEXTS = 200  # texts of a place that are told apart
_MAX_SHOWN = 60  # characters of a cell
_WIDTH = 160  # characters, if standard output is not a terminal
_DECODER = msgspec.json.Decoder(Line)

Key = tuple[str, str, str | None, tuple[str, ...]]  # phase, tool, pointer, keywords


@dataclass(slots=True)
class RankedPlace:
    """The overrides of one place by the same keywords."""

    phase: str
    tool: str
    pointer: str | None
    keywords: tuple[str, ...]
    overrides: int = 0
    calls: int = 0  # calls, or outside of calls turns, that hold at least one of these
    share: float | None = None  # estimated share of the tool's calls, or of the turns; None if none is complete
    changes: Counter[tuple[str | None, str | None]] = field(default_factory=Counter)  # (wanted, written) -> times
    forbidden: float = 0.0  # mean probability of all forbidden tokens there
    last: tuple[str, int] | None = None  # turn and call of the last one

    @property
    def advice(self) -> str:
        """The advice for the tool's author."""
        return advice(self.keywords)

    def add(self, line: OverrideLine) -> None:
        """Count an override."""
        self.overrides += 1
        self.forbidden += (line.forbidden - self.forbidden) / self.overrides
        here = (line.turn, line.call if line.tool else 0)
        self.calls += here != self.last
        self.last = here
        change = line.wanted, line.written
        if change in self.changes or len(self.changes) < _MAX_TEXTS:
            self.changes[change] += 1


@dataclass(slots=True)
class Ranking:
    """The places of one or more logs, and what was examined."""

    places: list[RankedPlace]  # those with the most overridden calls first
    turns: int = 0
    tokens: int = 0  # of these turns
    examined: int = 0  # of these tokens
    calls: Counter[str] = field(default_factory=Counter)  # by tool
    bad_lines: int = 0  # malformed, or of another version


def rank(paths: Iterable[Path]) -> Ranking:
    """Rank what logs hold; raises ``InvalidRequest`` if one cannot be read.

    A server examines some of its steps only. So the share of calls overridden at a place is estimated: the share of
    those seen, divided by the share of tokens that were examined.
    """
    places: dict[Key, RankedPlace] = {}
    ranking = Ranking([])
    for line in _lines(paths):
        if line is None:
            ranking.bad_lines += 1
        elif isinstance(line, TurnLine):
            ranking.turns += 1
            ranking.tokens += max(0, line.tokens)
            ranking.examined += max(0, line.examined)
            ranking.calls.update(line.calls)
        else:
            pointer = None if line.pointer is None else general_pointer(line.pointer)
            key: Key = (line.phase, line.tool, pointer, line.keywords)
            if key not in places and len(places) >= _MAX_PLACES:
                key = ("", "", None, ())
            places.setdefault(key, RankedPlace(*key)).add(line)
    times = max(1.0, ranking.tokens / ranking.examined) if ranking.examined else 1.0
    for place in places.values():
        whole = ranking.calls[place.tool] if place.tool else ranking.turns
        place.share = min(1.0, place.calls * times / whole) if whole else None
    ranking.places = sorted(places.values(), key=lambda place: (-place.calls, -place.overrides, place.tool))
    return ranking


def _lines(paths: Iterable[Path]) -> Iterator[Line | None]:
    """The lines of all files; None for one that cannot be read."""
    for path in paths:
        try:
            with path.open("rb") as file:
                for data in iter(lambda file=file: file.readline(_MAX_LINE), b""):  # type: ignore[misc]
                    try:
                        yield _DECODER.decode(data)
                    except (msgspec.DecodeError, UnicodeDecodeError):
                        yield None
        except OSError as error:
            remedy = "Name the files that the setting overrides_log writes"
            raise InvalidRequest(f"cannot be read: {error}", str(path), remedy) from error


def print_ranking(paths: Iterable[Path], top: int = 20) -> None:
    """Print the first places as a table to standard output; raises as :func:`rank` does."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    ranking = rank(paths)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("tool", "place", "forbidden by", "calls", "share", "wanted → written", "what to do"):
        table.add_column(title, justify="right" if title in {"calls", "share"} else "left")
    for place in ranking.places[:top]:
        table.add_row(*map(Text, _cells(place)))
    console.print(table if ranking.places else Text("No override in the log."))
    for line in _notes(ranking, top):
        console.print(Text(line, style="dim"))


def _cells(place: RankedPlace) -> tuple[str, ...]:
    most = place.changes.most_common(1)
    change = ""
    if most:
        (wanted, written), times = most[0]
        change = f"{_quoted(wanted)} → {_quoted(written)} ({times} of {place.overrides})"
    share = "" if place.share is None else f"{place.share:.0%}"
    shown = shown_text(place.tool)
    where = shown_text(place.phase if place.pointer is None else place.pointer or "(arguments)")
    return shown, where, shown_text(", ".join(place.keywords)), str(place.calls), share, change, place.advice


def _notes(ranking: Ranking, top: int) -> Iterator[str]:
    part = f"{ranking.examined / ranking.tokens:.1%}" if ranking.tokens else "none"
    yield (
        f"{ranking.turns:,} turns with {sum(ranking.calls.values()):,} calls; {part} of their tokens were examined. "
        "Calls: those seen overridden; share: of all calls of the tool, estimated."
    )
    if any(None in change for place in ranking.places for change in place.changes):
        yield 'Texts that no tool declares are shown as "?": the setting overrides_log_values logs them.'
    if len(ranking.places) > top:
        yield f"{len(ranking.places) - top:,} further places are left out."
    if ranking.bad_lines:
        yield f"{ranking.bad_lines:,} malformed lines are left out."


def _quoted(text: str | None) -> str:
    return "?" if text is None else f"“{shown_text(text)}”"


def shown_text(text: str) -> str:
    """The beginning of a text for a terminal: control characters and marks of text direction are escaped."""
    cut = text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape", "backslashreplace").decode() for each in cut
    )
