"""Calls a request's matcher so that an exception ends that request only."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from constrained_k2.turn.matcher import ToolCallMatcher
from constrained_k2.vocabulary.bitmask import TokenSet

FAILED = object()
"""The result of a step that raised."""


class GuardedMatcher(ABC):
    """One constrained request inside the engine, on either route; ``matcher`` is None once it has failed.

    An exception that leaves a grammar or a logits processor would end the whole engine.
    """

    def __init__(self, matcher: ToolCallMatcher | None, stop: TokenSet) -> None:
        self.matcher = matcher
        self._stop = stop

    def attempt(self, step: Callable[..., Any], *args: Any) -> Any:
        """The result of a step, or :data:`FAILED`."""
        try:
            return step(*args)
        except (KeyboardInterrupt, SystemExit):  # vLLM's own way to end the engine
            raise
        except BaseException as error:  # noqa: BLE001 - see the class; PyO3 raises Rust's panics as BaseException
            self.failed(step, error)
        return FAILED

    @abstractmethod
    def failed(self, step: Callable[..., Any], error: BaseException) -> None:
        """Decide what a failed step means for the request."""
