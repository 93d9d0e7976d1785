"""The figures of an arm: each the share of one sum of counts in another."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from constrained_k2.evaluation.ab.judge import COLUMNS

CountTable = NDArray[np.int32]
"""[samples, counts]: the counts of an arm's answers to each sample, over all repetitions; columns as in ``COLUMNS``."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A share.

    Attributes:
        name: As scripts read it; the vendor verifier's name where it has one.
        title: As people read it.
        top: Count -> its weight in the numerator.
        bottom: The same in the denominator.
        is_better_high: Whether more of it is better.
        is_compared: Whether an arm may be called worse for it.
    """

    name: str
    title: str
    top: Mapping[str, int]
    bottom: Mapping[str, int]
    is_better_high: bool = True
    is_compared: bool = True


def _share(name: str, title: str, top: str, bottom: str, **options: bool) -> Figure:
    return Figure(name, title, {top: 1}, {bottom: 1}, **options)


FIGURES: tuple[Figure, ...] = (
    # Not compared: an arm that calls more functions without parameters looks worse by it; ``valid`` says what it means.
    _share("schema_accuracy", "schema_accuracy (K2VV)", "successful_tool_call", "finish_tool_calls", is_compared=False),
    Figure("tool_call_f1", "tool_call_f1 (K2VV)", {"tp": 2}, {"tp": 2, "fp": 1, "fn": 1}),
    Figure("tool_call_precision", "tool_call_precision (K2VV)", {"tp": 1}, {"tp": 1, "fp": 1}, is_compared=False),
    Figure("tool_call_recall", "tool_call_recall (K2VV)", {"tp": 1}, {"tp": 1, "fn": 1}, is_compared=False),
    _share("right", "answers with nothing wrong", "right", "requests"),
    _share("in_form", "answers right in form", "in_form", "requests"),
    _share("served", "call due, and right calls came", "served", "due"),
    _share("declared", "calls of a declared function", "declared", "calls"),
    _share("decoded", "  arguments are a JSON object", "decoded", "declared"),
    _share("valid", "  arguments valid", "valid", "judged"),
    _share("empty_valid", "  valid, for functions without parameters", "empty_valid", "empty_calls"),
    _share("awkward_right", "  right, for names with a hyphen or a dot", "awkward_right", "awkward_calls"),
    _share("numbered", "call id functions.NAME:INDEX as due", "numbered", "calls"),
    _share("tool_match", "the expected functions", "tool_match", "expected"),
    _share("argument_match", "  with the expected arguments", "argument_match", "expected"),
    _share("order_match", "  in the expected order, of two or more", "order_match", "ordered"),
    _share("optional_recall", "  expected optional arguments written", "optional_written", "optional_due"),
    _share("truncated", "cut off by max_tokens", "truncated", "success", is_better_high=False, is_compared=False),
    Figure(
        "failed", "requests without an answer", {"requests": 1, "success": -1}, {"requests": 1}, is_better_high=False
    ),
)
"""All figures, in the order of the report."""


def weights(side: str) -> NDArray[np.int64]:
    """[counts, figures]: what each count weighs in each figure's ``top`` or ``bottom``."""
    table = np.zeros((len(COLUMNS), len(FIGURES)), np.int64)
    for place, figure in enumerate(FIGURES):
        for name, weight in getattr(figure, side).items():
            table[COLUMNS.index(name), place] = weight
    return table


def totals(table: CountTable) -> dict[str, int]:
    """The sum of every count."""
    return dict(zip(COLUMNS, map(int, table.sum(axis=0, dtype=np.int64)), strict=True))


def value(figure: Figure, counts: Mapping[str, int]) -> tuple[int, int, float | None]:
    """Numerator, denominator and share; no share where the denominator is 0."""
    top = sum(weight * counts[name] for name, weight in figure.top.items())
    bottom = sum(weight * counts[name] for name, weight in figure.bottom.items())
    return top, bottom, top / bottom if bottom else None


def verifier_summary(counts: Mapping[str, int], reasons: Mapping[str, int], model: str) -> dict[str, Any]:
    """The vendor verifier's ``summary.json``, its field names (``tool_calls_eval.py``, ``compute_summary``).

    Args:
        counts: An arm's.
        reasons: ``finish_reason`` -> how many answers ended so.
        model: The model that was asked.
    """
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
