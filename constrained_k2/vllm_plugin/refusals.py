"""What is said of a request that is refused: one line in the log, one count in the metrics.

Requests are untrusted, and their text is in the errors. So a line holds a bounded number of printable characters, lines
come no faster than they can be read, and a count's labels are of fixed sets.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields

from constrained_k2.errors import ConstrainedK2Error, InvalidRequest, SchemaTooCostly, UnsupportedSchema
from constrained_k2.schema.coverage import KEYWORDS
from constrained_k2.schema.screen import SchemaBudget
from constrained_k2.tools import Limits
from constrained_k2.vllm_plugin import metrics
from constrained_k2.vllm_plugin.log import logger

_CHARACTERS = 220  # of an error's text; with what stands before it, a line stays under 300
_LINES_PER_SECOND = 1.0
_LINES_AT_ONCE = 20

PLACES = frozenset({"tools", "tool_choice", "parallel_tool_calls", "messages", "thinking", "chat_template_kwargs",
                    "engine", "first_index", "vllm_xargs", "server", "body", "use_beam_search", "bad_words",
                    "allowed_token_ids", "structured_outputs", "response_format", "text"})  # fmt: skip
"""The beginnings of places in a request that are told apart."""

BUDGETS = frozenset({field.name for kind in (Limits, SchemaBudget) for field in fields(kind)}) | frozenset(
    {
        "llguidance",
        "compile_ms",
        "compile_bytes",
        "request_ms",
        "nodes",
        "alternatives",
        "meetings",
        "count",
        "multiple",
    }
)
"""The names of all budgets."""

OTHER = "other"


class LineLimit:
    """Lets some lines through at once and then one in a while, and counts those that it does not.

    Args:
        per_second: How many lines a second in the long run.
        at_once: How many after a pause.
        clock: Seconds that only grow.
    """

    def __init__(self, per_second: float, at_once: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._at_once = at_once
        self._clock = clock
        self._left = float(at_once)
        self._last = clock()
        self._lock = threading.Lock()
        self._unsaid = 0

    def take(self) -> int | None:
        """How many lines were not let through since the last one that was; None if this one is not either."""
        with self._lock:
            now = self._clock()
            self._left = min(self._at_once, self._left + (now - self._last) * self._per_second)
            self._last = now
            if self._left < 1:
                self._unsaid += 1
                return None
            self._left -= 1
            unsaid, self._unsaid = self._unsaid, 0
            return unsaid


_limit = LineLimit(_LINES_PER_SECOND, _LINES_AT_ONCE)


@contextmanager
def refusals_noted() -> Iterator[None]:
    """Note an error of ours that leaves this block, or the function that this decorates, once."""
    try:
        yield
    except ConstrainedK2Error as error:
        if not getattr(error, "is_noted", False):
            error.is_noted = True  # type: ignore[attr-defined] # an error may pass several such blocks
            _note(error)
        raise


def _note(error: ConstrainedK2Error) -> None:
    reason, detail = classified(error)
    metrics.record_refusal(reason, detail)
    warn(f"refused, {reason} {detail}", str(error))


def warn(what: str, text: str) -> None:
    """Say something of a request in one line, if lines are left.

    Args:
        what: Ours.
        text: With what the client sent in it.
    """
    unsaid = _limit.take()
    if unsaid is not None:
        more = f" ({unsaid} more before)" if unsaid else ""
        logger.warning("constrained_k2: %s%s: %s", what, more, in_one_line(text))


def classified(error: ConstrainedK2Error) -> tuple[str, str]:
    """An error's kind and what it is about, both of fixed sets: a budget, a schema keyword or a part of the request."""
    match error:
        case SchemaTooCostly():
            return "too_costly", error.budget if error.budget in BUDGETS else OTHER
        case UnsupportedSchema():
            return "unsupported_schema", error.keyword if error.keyword in KEYWORDS else OTHER
        case InvalidRequest():
            begin = re.match(r"\w*", error.place)
            return "invalid_request", begin[0] if begin and begin[0] in PLACES else OTHER
    return OTHER, OTHER


def in_one_line(text: str) -> str:
    """The text's beginning; line breaks, terminal controls and marks that turn the direction of text are escaped."""
    line = "".join(
        character if character.isprintable() else character.encode("unicode_escape", "backslashreplace").decode()
        for character in text[:_CHARACTERS]
    )
    return line if len(text) <= _CHARACTERS and len(line) <= _CHARACTERS else f"{line[:_CHARACTERS]}…"
