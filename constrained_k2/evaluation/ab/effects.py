"""The effects of the constraint, from greedy answers with it and without it."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from scipy import stats  # type: ignore[import-untyped]

from constrained_k2.evaluation.ab.changes import Change
from constrained_k2.evaluation.ab.thresholds import Curve, curve
from constrained_k2.evaluation.answer import Record
from constrained_k2.evaluation.judge import decode_arguments, judge
from constrained_k2.evaluation.sample import Sample
from constrained_k2.formats.base import WireFormat

EDGES = (0.0, 0.5, 0.9, 0.99, 1.0)
"""The bins of forbidden probability: 0 alone, then from each edge, exclusive, to the next."""

_MAX_PLACES = 5000
_MAX_VALUE = 60  # characters of a value that is compared


class Bin(NamedTuple):
    """Answers by the most probability that was forbidden at one of their tokens."""

    low: float  # exclusive, but for the first bin
    high: float
    answers: int
    wrong: int
    interval: tuple[float, float]  # 95 %, exact, of the share of wrong answers; (nan, nan) without answers


class Calibration(NamedTuple):
    """Forbidden probability against wrong answers."""

    bins: tuple[Bin, ...]
    separation: float | None  # probability that a wrong answer had more forbidden than a right one; None without both
    p: float | None  # Mann and Whitney's test, two-sided


class Group(NamedTuple):
    """Answers of one kind, and their mean probability per token under the unconstrained model."""

    title: str
    answers: int
    right: int  # constrained
    unconstrained_right: int
    written: float | None  # median, over answers, of the geometric mean of the constrained answer's tokens
    unconstrained: float | None  # the same of the unconstrained answer
    cost: float | None  # median difference of the whole answers' logarithms, in bits


@dataclass(slots=True)
class SiteStats:
    """The overrides of one place by the same keywords."""

    phase: str
    tool: str
    pointer: str | None
    keywords: tuple[str, ...]
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
    calibration: Calibration
    groups: list[Group]
    curve: Curve | None = None

    def most_informative(self, count: int = 3) -> list[SiteStats]:
        """The places that tell most: the most answers repaired, then the most overridden; each tool's place once."""
        ranked = sorted(self.places, key=lambda place: (-place.repaired, -place.answers))
        found: dict[tuple[str, str | None], SiteStats] = {}
        for place in ranked:
            found.setdefault((place.tool, place.pointer), place)
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
            "calibration": [each._asdict() | {"interval": _finite(each.interval)} for each in self.calibration.bins],
            "separation": self.calibration.separation,
            "p": self.calibration.p,
            "groups": [each._asdict() for each in self.groups],
            "thresholds": self.curve and self.curve.to_json(),
        }


class _Pair(NamedTuple):
    change: Change
    is_right: bool
    was_right: bool  # without the constraint
    forbidden: float  # the most at one token


def effects(changes: Iterable[Change], samples: Mapping[str, Sample], wire_format: WireFormat) -> list[Effects]:
    """The effects that changes show, by arm. The last change of a sample counts."""
    by_arm: dict[str, dict[str, Change]] = {}
    for change in changes:
        if change.key in samples:
            by_arm.setdefault(change.arm, {})[change.key] = change
    return [_effects(arm, last, samples, wire_format) for arm, last in by_arm.items()]


def _effects(arm: str, last: Mapping[str, Change], samples: Mapping[str, Sample], wire_format: WireFormat) -> Effects:
    pairs: list[_Pair] = []
    places: dict[tuple[Any, ...], SiteStats] = {}
    for key, change in last.items():
        if not change.is_whole:
            continue
        both = (judge(samples[key], record, wire_format) for record in (change.constrained, change.unconstrained))
        right, was_right = (bool(judgement.counts.right) for judgement in both)
        forbidden = max((each.forbidden or 0.0 for each in change.overrides or ()), default=0.0)
        pair = _Pair(change, right, was_right, forbidden)
        pairs.append(pair)
        _add_places(places, pair)
    errors = [change.error for change in last.values() if not change.is_whole]
    ranked = sorted(places.values(), key=lambda place: (-place.answers, -place.overrides, place.tool))
    return Effects(
        arm,
        len(pairs),
        len(errors),
        next(iter(errors), ""),
        sum(pair.change.examined for pair in pairs),
        sum(len(pair.change.overrides or ()) for pair in pairs),
        ranked,
        _calibration(pairs),
        list(_groups(pairs)),
        curve([pair.change for pair in pairs], samples),
    )


def _without_indices(pointer: str) -> str:
    """A pointer with ``*`` for each index, so that all items of an array count as one place."""
    return "/".join("*" if each.isdigit() else each for each in pointer.split("/"))


def _add_places(places: dict[tuple[Any, ...], SiteStats], pair: _Pair) -> None:
    seen = set[tuple[Any, ...]]()
    for each in pair.change.overrides or ():
        pointer = None if each.pointer is None else _without_indices(each.pointer)
        key = (each.phase, each.tool, pointer, each.keywords)
        if key not in places and len(places) >= _MAX_PLACES:
            continue
        place = places.setdefault(key, SiteStats(*key))
        place.overrides += 1
        place.tokens[each.wanted, each.written or ""] += 1
        if key in seen:
            continue
        seen.add(key)
        place.answers += 1
        place.right += pair.is_right
        place.repaired += pair.is_right and not pair.was_right
        place.harmed += pair.was_right and not pair.is_right
        if each.pointer:
            records = (pair.change.unconstrained, pair.change.constrained)
            before, after = (_value_at(record, each.tool, each.pointer) for record in records)
            if before is not None and after is not None and before != after:
                place.values[before, after] += 1


def _value_at(record: Record, tool: str, pointer: str) -> str | None:
    """A scalar in the answer's first call of a tool, as JSON; None if there is none."""
    value: Any = next((decode_arguments(text)[0] for _, name, text in record.calls if name == tool), None)
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    is_scalar = isinstance(value, str | int | float)
    return json.dumps(value, ensure_ascii=False)[:_MAX_VALUE] if is_scalar else None


def _calibration(pairs: list[_Pair]) -> Calibration:
    bins = []
    for number, high in enumerate(EDGES):
        low = EDGES[max(0, number - 1)]
        inside = [pair for pair in pairs if (low < pair.forbidden <= high if number else pair.forbidden <= 0)]
        wrong = sum(not pair.is_right for pair in inside)
        interval = stats.binomtest(wrong, len(inside)).proportion_ci(0.95, method="exact") if inside else None
        ends = (math.nan, math.nan) if interval is None else (float(interval.low), float(interval.high))
        bins.append(Bin(low, high, len(inside), wrong, ends))
    of_wrong = [pair.forbidden for pair in pairs if not pair.is_right]
    of_right = [pair.forbidden for pair in pairs if pair.is_right]
    if not of_wrong or not of_right:
        return Calibration(tuple(bins), None, None)
    test = stats.mannwhitneyu(of_wrong, of_right, alternative="two-sided")
    return Calibration(tuple(bins), float(test.statistic) / (len(of_wrong) * len(of_right)), float(test.pvalue))


def _groups(pairs: list[_Pair]) -> Iterator[Group]:
    overridden = [pair for pair in pairs if pair.forbidden > 0]
    yield _group("all answers", pairs)
    yield _group("without an override", [pair for pair in pairs if not pair.forbidden])
    yield _group("with an override", overridden)
    yield _group("  right", [pair for pair in overridden if pair.is_right])
    yield _group("  wrong", [pair for pair in overridden if not pair.is_right])


def _group(title: str, pairs: list[_Pair]) -> Group:
    known = [p.change for p in pairs if p.change.constrained_logprobs and p.change.unconstrained_logprobs]
    written = _median(math.exp(np.mean(each.constrained_logprobs)) for each in known)
    unconstrained = _median(math.exp(np.mean(each.unconstrained_logprobs)) for each in known)
    cost = _median((sum(each.unconstrained_logprobs) - sum(each.constrained_logprobs)) / math.log(2) for each in known)
    right, was_right = sum(pair.is_right for pair in pairs), sum(pair.was_right for pair in pairs)
    return Group(title, len(pairs), right, was_right, written, unconstrained, cost)


def _median(values: Iterable[float]) -> float | None:
    found = list(values)
    return float(np.median(found)) if found else None


def _finite(interval: tuple[float, float]) -> list[float] | None:
    return None if math.isnan(interval[0]) else list(interval)


def _place_to_json(place: SiteStats) -> dict[str, Any]:
    names = ("phase", "tool", "pointer", "keywords", "answers", "overrides", "right", "repaired", "harmed")
    found = {name: getattr(place, name) for name in names}
    for name, counted in (("tokens", place.tokens), ("values", place.values)):
        found[name] = [[*each, times] for each, times in counted.most_common(5)]
    return found
