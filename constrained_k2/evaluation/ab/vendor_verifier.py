"""Moonshot's K2 Vendor Verifier: what it counts, and what it found.

Source of the rules: github.com/MoonshotAI/K2-Vendor-Verifier, ``tool_calls_eval.py`` (``validate_tool_call``,
``process_request``, ``compute_summary``) and its README, as of November 2025. A ``finish_reason`` of ``tool_calls``
counts as successful if calls came and jsonschema accepts all arguments. Its peculiarities are kept: a tool without
``parameters``, or with empty ones, never succeeds; formats are not checked; ``NaN`` is a number; an answer that was cut
off (``length``) counts neither way.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jsonschema
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]


def is_successful_tool_call(calls: tuple[tuple[str, str, str], ...], tools: Mapping[str, Any]) -> bool:
    """Whether an answer that ended with ``tool_calls`` counts as ``count_successful_tool_call``.

    Args:
        calls: ``(id, name, arguments)``.
        tools: Name -> ``parameters``.
    """
    return bool(calls) and all(_is_valid(arguments, tools.get(name)) for _, name, arguments in calls)


def _is_valid(arguments: str, schema: Any) -> bool:
    if not schema:
        return False
    try:
        value = json.loads(arguments)
        validator = jsonschema.validators.validator_for(schema)
        validator.check_schema(schema)
        # Nothing is fetched: a reference that leaves the schema is an error here.
        return bool(validator(schema, registry=REGISTRY).is_valid(value))
    except Exception:  # noqa: BLE001 - the verifier counts every error as a failure, a wrong schema's too
        return False


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """A row of the published tables.

    Attributes:
        model: The model that was tested.
        provider: Who served it.
        tool_call_f1: ``ToolCall-Trigger Similarity`` as it is printed; a bound where the table gives one.
        finish_tool_calls: ``count_finish_reason_tool_calls``.
        successful: ``count_successful_tool_call``.
    """

    model: str
    provider: str
    tool_call_f1: str
    finish_tool_calls: int
    successful: int

    @property
    def schema_accuracy(self) -> float:
        """The share of both counts, from 0 to 1."""
        return self.successful / self.finish_tool_calls


def _rows(model: str, bound: str, rows: tuple[tuple[str, int, int], ...]) -> tuple[PublishedRow, ...]:
    """The rows of one bound; the first is the reference itself, which has none."""
    return tuple(
        PublishedRow(model, name, bound if number else "-", finished, successful)
        for number, (name, finished, successful) in enumerate(rows)
    )


PUBLISHED: tuple[PublishedRow, ...] = (
    *_rows(
        "kimi-k2-0905-preview",
        ">=80%",
        (
            ("MoonshotAI", 1274, 1274),
            ("Moonshot AI Turbo", 1398, 1398),
            ("DeepInfra", 1365, 1365),
            ("Fireworks", 1453, 1453),
            ("Infinigence", 1257, 1257),
            ("NovitaAI", 1299, 1299),
            ("SiliconFlow", 1305, 1302),
            ("Chutes", 1271, 1229),
            ("vLLM", 1325, 1007),
            ("SGLang", 1269, 928),
            ("Volc", 1330, 969),
            ("Baseten", 1243, 901),
            ("AtlasCloud", 1277, 925),
            ("Together", 1266, 911),
        ),
    ),
    PublishedRow("kimi-k2-0905-preview", "Groq", "69.52%", 1042, 1042),
    PublishedRow("kimi-k2-0905-preview", "Nebius", "50.60%", 644, 544),
    *_rows(
        "kimi-k2-thinking",
        ">=73%",
        (
            ("MoonshotAI", 1958, 1958),
            ("Moonshot AI Turbo", 1984, 1984),
            ("Fireworks", 1703, 1703),
            ("InfiniAI", 1827, 1825),
            ("SiliconFlow", 2119, 2097),
            ("GMICloud", 1850, 1775),
            ("AtlasCloud", 1878, 1798),
            ("SGLang", 1874, 1790),
            ("vLLM", 2128, 1856),
            ("Parasail", 2108, 1837),
            ("DeepInfra", 2071, 1800),
            ("GoogleVertex", 1945, 1668),
            ("Together", 1893, 1602),
        ),
    ),
    PublishedRow("kimi-k2-thinking", "NovitaAI", "72.22%", 1778, 1715),
    PublishedRow("kimi-k2-thinking", "Chutes", "68.10%", 3657, 3037),
)
"""The tables of the verifier's README of 15 November 2025: 4,000 requests each, temperature 0.6 (0905), 1.0 (thinking).

Theirs are other requests to another model than a run here: a reference for the eye, not a comparison.
"""
