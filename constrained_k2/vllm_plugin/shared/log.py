"""Logging on a vLLM server: this package's logger, and limited lines about requests.

Requests are untrusted, and log lines quote them: so lines are limited in length and rate, and to printable characters.
"""

import logging
import threading
import time
from collections.abc import Callable
from functools import lru_cache

logger = logging.getLogger("vllm.constrained_k2")  # vLLM's servers show no warnings of other loggers

_CHARACTERS = 220  # of an error's text; with what is before it, a line stays under 300


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


def warn(what: str, text: str) -> None:
    """Log one line about a request, within the limit. ``text`` may quote the client."""
    dropped = _limit.take()
    if dropped is not None:
        more = f" ({dropped} more before)" if dropped else ""
        logger.warning("constrained_k2: %s%s: %s", what, more, in_one_line(text))


def warn_once(what: str, text: str) -> None:
    """Log one line as :func:`warn` does, unless this process has logged it before."""
    _warn_once(what, text[: _CHARACTERS + 1])  # cached texts are short, and a longer text still ends in an ellipsis


_warn_once = lru_cache(maxsize=4096)(warn)


def in_one_line(text: str) -> str:
    """The beginning of a text, with line breaks, terminal controls and marks of text direction escaped."""
    line = "".join(
        character if character.isprintable() else character.encode("unicode_escape", "backslashreplace").decode()
        for character in text[:_CHARACTERS]
    )
    return line if len(text) <= _CHARACTERS and len(line) <= _CHARACTERS else f"{line[:_CHARACTERS]}…"
