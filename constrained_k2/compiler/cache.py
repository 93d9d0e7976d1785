"""Thread-safe bounded caches (LRU values, recent keys), and counts of hits and compilations."""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LeastRecentlyUsed(Generic[K, V]):
    """A cache with a budget for the total cost of its values; it evicts the least recently used.

    The newest value stays even if it exceeds the budget alone. Values are built outside the lock: a slow one blocks
    only the threads that ask for the same key.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self.spent = 0
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._building: dict[K, Future[V]] = {}
        self._lock = threading.Lock()

    def peek(self, key: K) -> V | None:
        """The value of ``key``, or None; does not count as a use."""
        found = self._entries.get(key)
        return None if found is None else found[0]

    def clear(self) -> None:
        """Drop all values."""
        with self._lock:
            self._entries.clear()
            self.spent = 0

    def charge(self, key: K, cost: int) -> None:
        """Set the cost of a cached value that has grown; does nothing if ``key`` is not cached."""
        with self._lock:
            if (found := self._entries.pop(key, None)) is not None:
                self._add(key, found[0], cost - found[1], cost)

    def get(self, key: K, build: Callable[[], tuple[V, int]]) -> V:
        """The value of ``key``, else built by ``build() -> (value, cost)``, whose errors all waiting threads get."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key][0]
            pending = self._building.get(key)
            if pending is None:
                building = self._building[key] = Future()
        if pending is not None:
            return pending.result()
        try:
            value, cost = build()
        except BaseException as error:
            with self._lock:
                del self._building[key]
            building.set_exception(error)
            raise
        with self._lock:
            del self._building[key]
            self._add(key, value, cost, cost)
        building.set_result(value)
        return value

    def _add(self, key: K, value: V, more: int, cost: int) -> None:
        """Add the newest value, which costs ``more`` than before, and evict the oldest values over the budget."""
        self._entries[key] = (value, cost)
        self.spent += more
        while self.spent > self._budget and len(self._entries) > 1:
            _, (_, freed) = self._entries.popitem(last=False)
            self.spent -= freed


class RecentKeys(Generic[K]):
    """The keys added in the last ``seconds``, at most ``limit`` of them. Thread-safe."""

    def __init__(self, seconds: float, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._limit = limit
        self._clock = clock
        self._expiries: dict[K, float] = {}
        self._lock = threading.Lock()

    def __contains__(self, key: K) -> bool:
        expiry = self._expiries.get(key)
        return expiry is not None and self._clock() < expiry

    def add(self, key: K) -> None:
        """Add a key, or restart its time; the oldest key is dropped if there are too many."""
        with self._lock:
            self._expiries.pop(key, None)
            self._expiries[key] = self._clock() + self._seconds
            if len(self._expiries) > self._limit:
                del self._expiries[next(iter(self._expiries))]

    def clear(self) -> None:
        """Drop all keys."""
        with self._lock:
            self._expiries.clear()


class CompileCounts:
    """Counts of a compiler: cache hits, compilations, empty masks, late refusals. Thread-safe."""

    __slots__ = ("_lock", "compiled", "empty_masks", "hits", "late_refusals", "recent")

    def __init__(self) -> None:
        self.hits = 0
        self.compiled = 0  # compilations, including those that found no grammar
        self.empty_masks = 0  # masks computed without the engine that allowed no token, and so were wrong
        self.late_refusals = 0  # schemas found to have no grammar only after their call had begun
        self.recent: deque[float] = deque(maxlen=64)  # durations of the latest compilations in seconds, oldest first
        self._lock = threading.Lock()

    def add(self, seconds: float | None) -> None:
        """Count a compilation by the seconds that it took, or a cache hit (None)."""
        with self._lock:
            if seconds is None:
                self.hits += 1
            else:
                self.compiled += 1
                self.recent.append(seconds)

    def add_empty_mask(self) -> None:
        """Count a mask that was computed without the engine and allowed no token, which is an error."""
        with self._lock:
            self.empty_masks += 1

    def add_late_refusal(self) -> None:
        """Count a schema that was found to have no grammar only after its call had begun."""
        with self._lock:
            self.late_refusals += 1

    def snapshot(self) -> dict[str, Any]:
        """A consistent copy of all counts."""
        with self._lock:
            counts = {"hits": self.hits, "compiled": self.compiled, "empty_masks": self.empty_masks}
            counts["late_refusals"] = self.late_refusals
            return counts | {"recent": list(self.recent)}
