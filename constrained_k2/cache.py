"""A bounded cache whose values are made once, however many threads ask for one at the same time."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Making:
    """A value that is being made."""

    __slots__ = ("done", "error")

    def __init__(self) -> None:
        self.done = threading.Event()
        self.error: BaseException | None = None


class LeastRecentlyUsed(Generic[K, V]):
    """A cache over a budget; what has not been used for longest goes first.

    A value is made outside the lock, so a slow one holds up only those who ask for the same.

    Args:
        budget: What the values may cost together. The newest is kept in any case.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._spent = 0
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._makings: dict[K, _Making] = {}
        self._lock = threading.Lock()

    def peek(self, key: K) -> V | None:
        """The value of ``key``, if it is there; that does not count as a use."""
        found = self._entries.get(key)
        return None if found is None else found[0]

    @property
    def spent(self) -> int:
        """What the values cost together."""
        return self._spent

    def clear(self) -> None:
        """Drop all values."""
        with self._lock:
            self._entries.clear()
            self._spent = 0

    def get(self, key: K, build: Callable[[], tuple[V, int]]) -> V:
        """The value of ``key``; if it is not there, that of ``build()``, which returns ``(value, cost)``.

        Raises:
            Exception: What ``build`` raises; also to those who were waiting for the same value meanwhile.
        """
        while True:
            with self._lock:
                if key in self._entries:
                    self._entries.move_to_end(key)
                    return self._entries[key][0]
                making = self._makings.get(key)
                if making is None:
                    making = self._makings[key] = _Making()
                    break
            making.done.wait()
            if making.error is not None:
                raise making.error
        try:
            value, cost = build()
        except BaseException as error:
            making.error = error
            self._finish(key, making)
            raise
        with self._lock:
            self._entries[key] = (value, cost)
            self._spent += cost
            while self._spent > self._budget and len(self._entries) > 1:
                _, (_, freed) = self._entries.popitem(last=False)
                self._spent -= freed
        self._finish(key, making)
        return value

    def _finish(self, key: K, making: _Making) -> None:
        with self._lock:
            del self._makings[key]
        making.done.set()
