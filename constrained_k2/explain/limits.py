"""Limits on the CPU time and the schema trials of explaining one turn."""

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExplainLimits:
    """Limits on the explanation of one turn. Beyond them, overridden tokens are shown with their path but no keywords.

    Attributes:
        seconds: CPU time, including the time of compiling schemas.
        overrides: The maximum number of overrides explained, in the order of the turn.
        trials: The maximum number of schemas, each with some keywords removed, that are tried for one override.
        text_bytes: The maximum length of arguments, or of an answer, in which keywords are searched.
    """

    seconds: float = 1.0
    overrides: int = 4096
    trials: int = 64
    text_bytes: int = 1 << 20


DEFAULT_LIMITS = ExplainLimits()


class Exhausted(Exception):
    """The limits are reached; never leaves this package."""


class Budget:
    """The remaining time and trials."""

    def __init__(self, limits: ExplainLimits) -> None:
        self._deadline = time.thread_time() + limits.seconds
        self._most = limits.trials
        self._trials = 0

    def begin_override(self) -> None:
        """Give the next override its trials."""
        self._trials = self._most

    def add_seconds(self, seconds: float) -> None:
        """Count the CPU time that another thread spent."""
        self._deadline -= seconds

    @property
    def is_spent(self) -> bool:
        """True if the time is spent."""
        return time.thread_time() > self._deadline

    def check(self) -> None:
        """Raise if the time is spent."""
        if self.is_spent:
            raise Exhausted

    def count_trial(self) -> None:
        """Count a trial; raise if there is none left, or no time."""
        self.check()
        if not self._trials:
            raise Exhausted
        self._trials -= 1
