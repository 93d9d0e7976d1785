"""The effects of the constraint and of thresholds, from greedy answers with it and without it."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from constrained_k2.evaluation.ab.directory import Change
from constrained_k2.evaluation.answer import Record
from constrained_k2.evaluation.judge import decode_arguments, judge
from constrained_k2.evaluation.sample import Sample
from constrained_k2.explain.view import Site
from constrained_k2.formats.base import WireFormat
from constrained_k2.schema.document import local_target

THRESHOLDS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7)  # least probabilities of a call
_MAX_PLACES = 5000
_MAX_VALUE = 60  # characters of a value that is compared


@dataclass(slots=True)
class SiteStats:
    """The overrides of one place by the same keywords."""

    site: Site
    answers: int = 0  # that hold at least one
    overrides: int = 0
    right: int = 0  # of these answers
    repaired: int = 0  # right, and wrong without the constraint
    harmed: int = 0  # wrong, and right without the constraint
    tokens: Counter[tuple[str, str]] = field(default_factory=Counter)  # (wanted, written) -> times
    values: Counter[tuple[str, str]] = field(default_factory=Counter)  # (unconstrained, constrained) -> answers

    @property
    def change(self) -> tuple[tuple[str, str], int]:
        """The most frequent change and its count: of whole values if both answers hold them, else of tokens."""
        (found, times), *_ = (self.values or self.tokens).most_common(1)
        return found, times


class Outcome(NamedTuple):
    """The calls of some answers under a threshold."""

    threshold: float  # the least probability of a call
    unasked: int  # calls that are made, of functions that were not asked for
    declined: int  # answers with a declined call
    correct_declines: int  # declined answers in which no requested call is missing
    lost: int  # calls of functions that were asked for but are not made


class Curve(NamedTuple):
    """The outcomes of every threshold, for two halves of the samples.

    ``chosen`` is the threshold with the fewest calls not asked for or lost in the first half, the lowest of several.
    """

    first: tuple[Outcome, ...]
    second: tuple[Outcome, ...]
    chosen: float

    def to_json(self) -> dict[str, Any]:
        """As in ``scores.json``."""
        first, second = ([outcome._asdict() for outcome in half] for half in (self.first, self.second))
        return {"chosen": self.chosen, "first": first, "second": second}


@dataclass(slots=True)
class Effects:
    """The effects of one arm's constraint."""

    arm: str
    answers: int  # pairs of greedy answers
    left_out: int  # samples without such a pair
    error: str  # why, of the first one
    examined: int  # tokens
    overrides: int
    places: list[SiteStats]  # those in the most answers first
    curve: Curve | None = None

    def most_informative(self, count: int = 3) -> list[SiteStats]:
        """The places that tell most: the most answers repaired, then the most overridden; each tool's place once."""
        ranked = sorted(self.places, key=lambda place: (-place.repaired, -place.answers))
        found: dict[tuple[str, str | None], SiteStats] = {}
        for place in ranked:
            found.setdefault((place.site.tool, place.site.pointer), place)
        return list(found.values())[:count]

    def to_json(self) -> dict[str, Any]:
        """As in ``scores.json``."""
        return {
            "arm": self.arm,
            "answers": self.answers,
            "left_out": self.left_out,
            "examined_tokens": self.examined,
            "overrides": self.overrides,
            "places": [_place_to_json(place) for place in self.places[:100]],
            "thresholds": self.curve and self.curve.to_json(),
        }


def effects(changes: Iterable[Change], samples: Mapping[str, Sample], wire_format: WireFormat) -> list[Effects]:
    """The effects that changes show, by arm. The last change of a sample counts."""
    by_arm: dict[str, dict[str, Change]] = {}
    for change in changes:
        if change.key in samples:
            by_arm.setdefault(change.arm, {})[change.key] = change
    return [_effects(arm, last, samples, wire_format) for arm, last in by_arm.items()]


def _effects(arm: str, last: Mapping[str, Change], samples: Mapping[str, Sample], wire_format: WireFormat) -> Effects:
    pairs: list[Change] = []
    places: dict[Site, SiteStats] = {}
    for key, change in last.items():
        if change.is_whole:
            pairs.append(change)
            both = (judge(samples[key], record, wire_format) for record in (change.constrained, change.unconstrained))
            right, was_right = (bool(judgement.counts.right) for judgement in both)
            _add_places(places, change, is_right=right, was_right=was_right)
    errors = [change.error for change in last.values() if not change.is_whole]
    return Effects(
        arm,
        len(pairs),
        len(errors),
        next(iter(errors), ""),
        sum(change.examined for change in pairs),
        sum(len(change.overrides or ()) for change in pairs),
        sorted(places.values(), key=lambda place: (-place.answers, -place.overrides, place.site.tool)),
        curve(pairs, samples),
    )


def _add_places(places: dict[Site, SiteStats], change: Change, *, is_right: bool, was_right: bool) -> None:
    seen = set[Site]()
    for each in change.overrides or ():
        pointer = each.pointer
        if pointer is not None:  # all items of an array count as one place
            pointer = "/".join("*" if part.isdigit() else part for part in pointer.split("/"))
        site = Site(each.phase, each.tool, pointer, each.keywords)
        if site not in places and len(places) >= _MAX_PLACES:
            continue
        place = places.setdefault(site, SiteStats(site))
        place.overrides += 1
        place.tokens[each.wanted, each.written or ""] += 1
        if site in seen:
            continue
        seen.add(site)
        place.answers += 1
        place.right += is_right
        place.repaired += is_right and not was_right
        place.harmed += was_right and not is_right
        if each.pointer:
            records = (change.unconstrained, change.constrained)
            before, after = (_value_at(record, each.tool, each.pointer) for record in records)
            if before is not None and after is not None and before != after:
                place.values[before, after] += 1


def _value_at(record: Record, tool: str, pointer: str) -> str | None:
    """A scalar in the answer's first call of a tool, as JSON; None if there is none."""
    arguments = next((decode_arguments(text)[0] for _, name, text in record.calls if name == tool), None)
    value = local_target(arguments, f"#{pointer}")
    is_scalar = isinstance(value, str | int | float)
    return json.dumps(value, ensure_ascii=False)[:_MAX_VALUE] if is_scalar else None


def _place_to_json(place: SiteStats) -> dict[str, Any]:
    found = place.site._asdict()
    found |= {name: getattr(place, name) for name in ("answers", "overrides", "right", "repaired", "harmed")}
    for name, counted in (("tokens", place.tokens), ("values", place.values)):
        found[name] = [[*each, times] for each, times in counted.most_common(5)]
    return found


def curve(changes: Sequence[Change], samples: Mapping[str, Sample]) -> Curve | None:
    """The curve of an arm's changes; None if it declines calls itself, or no server told probabilities."""
    ordered = sorted(changes, key=lambda change: change.key)  # so that a half is the same in every run
    known = [change for change in ordered if change.chances and samples[change.key].expected is not None]
    if not known or any(change.constrained.declined for change in changes):
        return None
    first, second = ([*_outcomes(known[half::2], samples)] for half in range(2))
    best = min(first, key=lambda outcome: (outcome.unasked + outcome.lost, outcome.threshold))
    return Curve(tuple(first), tuple(second), best.threshold)


def _outcomes(changes: Sequence[Change], samples: Mapping[str, Sample]) -> Iterable[Outcome]:
    for threshold in THRESHOLDS:
        unasked = declined = correct = lost = 0
        for change in changes:
            names = [name for _, name, _ in change.constrained.calls]
            left = Counter(call.name for call in samples[change.key].expected or ())
            made = next((at for at, chance in enumerate(change.chances) if chance < threshold), len(names))
            unasked += sum(name not in left for name in names[:made])
            if made < len(names):
                missed = ((left - Counter(names[:made])) & Counter(names[made:])).total()
                declined, correct, lost = declined + 1, correct + (not missed), lost + missed
        yield Outcome(threshold, unasked, declined, correct, lost)
