"""Reports a refused request in the log and in the metrics.

Each refusal is one log line and one count. The labels of the count are from fixed sets.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields

from constrained_k2.errors import ConstrainedK2Error, InvalidRequest, SchemaTooCostly, UnsupportedSchema
from constrained_k2.request.spec import Limits
from constrained_k2.schema.budget import SchemaBudget
from constrained_k2.schema.keywords import KEYWORDS
from constrained_k2.vllm_plugin.api_server import families as metrics
from constrained_k2.vllm_plugin.shared.log import warn

FIELDS = frozenset({"tools", "tool_choice", "parallel_tool_calls", "messages", "thinking", "chat_template_kwargs",
                    "engine", "first_index", "vllm_xargs", "server", "body", "use_beam_search",
                    "structured_outputs", "response_format", "text"})  # fmt: skip
"""The first words of locations in a request that have a label of their own."""

BUDGETS = frozenset({field.name for kind in (Limits, SchemaBudget) for field in fields(kind)}) | {
    "llguidance", "mask_ms", "compile_ms", "compile_bytes", "request_ms", "nodes", "alternatives", "meetings", "count",
    "multiple", "definition_characters", "rules", "terminal_parts", "grammar_characters"}  # fmt: skip
"""The names of all budgets."""

OTHER = "other"


@contextmanager
def refusals_noted() -> Iterator[None]:
    """Report an error of ours that leaves this block, or the decorated function, once."""
    try:
        yield
    except ConstrainedK2Error as error:
        if not getattr(error, "is_noted", False):
            error.is_noted = True  # type: ignore[attr-defined] # an error may pass several such blocks
            reason, detail = classified(error)
            metrics.record_refusal(reason, detail)
            warn(f"refused, {reason} {detail}", str(error))
        raise


def classified(error: ConstrainedK2Error) -> tuple[str, str]:
    """The metric labels of an error, from fixed sets: its kind, and the budget, schema keyword or request field."""
    match error:
        case SchemaTooCostly():
            return "too_costly", error.budget if error.budget in BUDGETS else OTHER
        case UnsupportedSchema():
            return "unsupported_schema", error.keyword if error.keyword in KEYWORDS else OTHER
        case InvalidRequest():
            begin = re.match(r"\w*", error.location)
            return "invalid_request", begin[0] if begin and begin[0] in FIELDS else OTHER
    return OTHER, OTHER
