"""Reports refused requests: one line in the log, one count in the metrics.

Requests are untrusted, and errors quote them. So a line has a bounded number of printable characters, lines are
limited in rate, and the labels of a count are of fixed sets.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields

from constrained_k2.errors import ConstrainedK2Error, InvalidRequest, SchemaTooCostly, UnsupportedSchema
from constrained_k2.request.spec import Limits
from constrained_k2.schema.budget import SchemaBudget
from constrained_k2.schema.keywords import KEYWORDS
from constrained_k2.vllm_plugin.log import logger
from constrained_k2.vllm_plugin.metrics import families as metrics

_CHARACTERS = 220  # of an error's text; with what is before it, a line stays under 300

PLACES = frozenset({"tools", "tool_choice", "parallel_tool_calls", "messages", "thinking", "chat_template_kwargs",
                    "engine", "first_index", "vllm_xargs", "server", "body", "use_beam_search",
                    "structured_outputs", "response_format", "text"})  # fmt: skip
"""The first words of locations in a request that have a label of their own."""

BUDGETS = frozenset({field.name for kind in (Limits, SchemaBudget) for field in fields(kind)}) | {
    "llguidance", "compile_ms", "compile_bytes", "request_ms", "nodes", "alternatives", "meetings", "count",
    "multiple"}  # fmt: skip
"""The names of all budgets."""

OTHER = "other"


class LineLimit:
    """A token bucket for log lines, which counts those that it drops: a rate in lines a second, and a burst."""

    def __init__(self, per_second: float, at_once: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._at_once = at_once
        self._clock = clock
        self._left = float(at_once)
        self._last = clock()
        self._lock = threading.Lock()
        self._dropped = 0

    def take(self) -> int | None:
        """Count the lines dropped since the last one that passed; None if this one is dropped too."""
        with self._lock:
            now = self._clock()
            self._left = min(self._at_once, self._left + (now - self._last) * self._per_second)
            self._last = now
            if self._left < 1:
                self._dropped += 1
                return None
            self._left -= 1
            dropped, self._dropped = self._dropped, 0
            return dropped


_limit = LineLimit(per_second=1.0, at_once=20)


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


def warn(what: str, text: str) -> None:
    """Log one line about a request, within the limit. ``text`` may quote the client."""
    dropped = _limit.take()
    if dropped is not None:
        more = f" ({dropped} more before)" if dropped else ""
        logger.warning("constrained_k2: %s%s: %s", what, more, in_one_line(text))


def classified(error: ConstrainedK2Error) -> tuple[str, str]:
    """The metric labels of an error, from fixed sets: its kind, and the budget, schema keyword or request field."""
    match error:
        case SchemaTooCostly():
            return "too_costly", error.budget if error.budget in BUDGETS else OTHER
        case UnsupportedSchema():
            return "unsupported_schema", error.keyword if error.keyword in KEYWORDS else OTHER
        case InvalidRequest():
            begin = re.match(r"\w*", error.location)
            return "invalid_request", begin[0] if begin and begin[0] in PLACES else OTHER
    return OTHER, OTHER


def in_one_line(text: str) -> str:
    """The beginning of a text, with line breaks, terminal controls and marks of text direction escaped."""
    line = "".join(
        character if character.isprintable() else character.encode("unicode_escape", "backslashreplace").decode()
        for character in text[:_CHARACTERS]
    )
    return line if len(text) <= _CHARACTERS and len(line) <= _CHARACTERS else f"{line[:_CHARACTERS]}…"
