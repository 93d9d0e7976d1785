"""Figures of an arm: each is one weighted sum of counts divided by another."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from constrained_k2.evaluation.judge import COLUMNS

# [samples, counts]: counts of an arm's answers to each sample, over all repetitions; columns as in ``COLUMNS``.
CountTable = NDArray[np.int32]

# Whether higher or lower values of a figure are better. A neutral figure makes no arm better or worse.
Direction = Literal["higher", "lower", "neutral"]


class Figure(NamedTuple):
    """A figure: a weighted sum of counts divided by another."""

    name: str  # key in scores.json; the vendor verifier's name where it has one
    title: str  # in reports; two leading spaces indent it below the figure before
    top: Mapping[str, int]  # count -> weight in the numerator
    bottom: Mapping[str, int]  # count -> weight in the denominator
    better: Direction = "higher"


def _share(name: str, title: str, top: str, bottom: str, better: Direction = "higher") -> Figure:
    return Figure(name, title, {top: 1}, {bottom: 1}, better)


FIGURES: tuple[Figure, ...] = (
    # Neutral: it counts every call of a function without parameters as wrong. ``valid`` is compared instead.
    _share("schema_accuracy", "schema_accuracy (K2VV)", "successful_tool_call", "finish_tool_calls", "neutral"),
    Figure("tool_call_f1", "tool_call_f1 (K2VV)", {"tp": 2}, {"tp": 2, "fp": 1, "fn": 1}),
    # Neutral: either one can be raised by lowering the other. f1 is compared instead.
    Figure("tool_call_precision", "tool_call_precision (K2VV)", {"tp": 1}, {"tp": 1, "fp": 1}, "neutral"),
    Figure("tool_call_recall", "tool_call_recall (K2VV)", {"tp": 1}, {"tp": 1, "fn": 1}, "neutral"),
    _share("right", "answers with nothing wrong", "right", "requests"),
    _share("in_form", "answers right in form", "in_form", "requests"),
    _share("served", "required calls made, right in form", "served", "due"),
    _share("declared", "calls of a declared function", "declared", "calls"),
    _share("decoded", "  arguments are a JSON object", "decoded", "declared"),
    _share("valid", "  arguments valid", "valid", "judged"),
    _share("empty_valid", "  valid, for functions without parameters", "empty_valid", "empty_calls"),
    _share("awkward_right", "  right, for names with a hyphen or a dot", "awkward_right", "awkward_calls"),
    _share("numbered", "call id as expected", "numbered", "calls"),
    _share("unasked", "executable calls that were not asked for", "unasked", "executable", "lower"),
    # Neutral: declining a call may be right or wrong. ``unasked``, ``tool_match`` and ``right`` show which.
    _share("declined_calls", "declined calls", "declined_calls", "requests", "neutral"),
    _share("declined_due", "  rightly declined", "declined_due", "declined_calls", "neutral"),
    _share("tool_match", "the expected functions", "tool_match", "expected"),
    _share("argument_match", "  with the expected arguments", "argument_match", "expected"),
    _share("order_match", "  in the expected order, of two or more", "order_match", "ordered"),
    _share("optional_recall", "  expected optional arguments written", "optional_written", "optional_due"),
    _share("truncated", "cut off by max_tokens", "truncated", "success", "lower"),
    Figure("failed", "requests without an answer", {"requests": 1, "success": -1}, {"requests": 1}, "lower"),
)


def weights(side: str) -> NDArray[np.int64]:
    """[counts, figures]: weight of each count in each figure's ``top`` or ``bottom``."""
    return np.array([[getattr(figure, side).get(name, 0) for figure in FIGURES] for name in COLUMNS], np.int64)


def totals(table: CountTable) -> dict[str, int]:
    """Count -> its sum over all samples."""
    return dict(zip(COLUMNS, table.sum(axis=0, dtype=np.int64).tolist(), strict=True))


def value(figure: Figure, counts: Mapping[str, int]) -> tuple[int, int, float | None]:
    """Numerator, denominator and share; the share is None where the denominator is 0."""
    top = sum(weight * counts[name] for name, weight in figure.top.items())
    bottom = sum(weight * counts[name] for name, weight in figure.bottom.items())
    return top, bottom, top / bottom if bottom else None


def verifier_summary(counts: Mapping[str, int], reasons: Mapping[str, int], model: str) -> dict[str, Any]:
    """The vendor verifier's ``summary.json``, with its field names (``tool_calls_eval.py``, ``compute_summary``)."""
    others = {reason: count for reason, count in reasons.items() if reason not in {"stop", "tool_calls"}}
    return {
        "model": model,
        "success_count": counts["success"],
        "failure_count": counts["requests"] - counts["success"],
        "finish_stop": reasons.get("stop", 0),
        "finish_tool_calls": counts["finish_tool_calls"],
        "finish_others": sum(others.values()),
        "finish_others_detail": others,
        "schema_validation_error_count": counts["finish_tool_calls"] - counts["successful_tool_call"],
        "successful_tool_call_count": counts["successful_tool_call"],
    }
