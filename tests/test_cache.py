"""The cache: bounded, each value made once, and failures told to all who wait for them."""

import json
import threading
from typing import Any

import pytest

from constrained_k2 import Compiler, ConstrainedK2Error, Vocabulary
from constrained_k2.cache import LeastRecentlyUsed
from constrained_k2.compiler import cache_key


def test_what_was_used_longest_ago_goes_first() -> None:
    cache: LeastRecentlyUsed[str, str] = LeastRecentlyUsed(10)
    made: list[str] = []

    def get(key: str, cost: int = 4) -> None:
        assert cache.get(key, lambda: (made.append(key) or key, cost)) == key

    for key in "abaca":
        get(key)
    assert made == ["a", "b", "c"]
    assert "b" not in cache
    assert cache.spent == 8
    get("large", 100)
    assert "large" in cache
    assert "a" not in cache
    cache.clear()
    assert cache.spent == 0
    assert "large" not in cache


def asked_for_at_once(cache: LeastRecentlyUsed[str, int], build: Any, count: int) -> list[Any]:
    found: list[Any] = []

    def ask() -> None:
        try:
            found.append(cache.get("key", build))
        except ValueError as error:
            found.append(str(error))

    threads = [threading.Thread(target=ask) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


def test_a_value_is_made_once_however_many_ask() -> None:
    cache: LeastRecentlyUsed[str, int] = LeastRecentlyUsed(10)
    made: list[int] = []

    def build() -> tuple[int, int]:
        made.append(1)
        assert cache.get("another", lambda: (5, 1)) == 5, "another value waited"
        threading.Event().wait(0.1)
        return 7, 1

    assert asked_for_at_once(cache, build, 6) == [7] * 6
    assert made == [1]


def test_a_failure_is_told_to_all_who_wait_and_forgotten() -> None:
    cache: LeastRecentlyUsed[str, int] = LeastRecentlyUsed(10)

    def build() -> tuple[int, int]:
        threading.Event().wait(0.1)
        raise ValueError("no")

    assert asked_for_at_once(cache, build, 4) == ["no"] * 4
    assert cache.get("key", lambda: (1, 1)) == 1


def test_a_refusal_is_remembered_without_what_was_refused() -> None:
    compiler = Compiler(Vocabulary.of_bytes())
    schemas = ['{"type": "object", "properties": {"a": {"$ref": "#/x"}}}', json.dumps({"enum": list(range(20_000))})]
    for schema in schemas:
        with pytest.raises(ConstrainedK2Error) as refused:
            compiler.grammar(schema, "here")
        kept = compiler._grammars.get(("llguidance", cache_key(schema)), lambda: pytest.fail("not remembered"))
        assert isinstance(kept, ConstrainedK2Error) and kept is not refused.value
        assert (kept.__traceback__, kept.__context__, kept.__cause__) == (None, None, None)
