"""The cache: bounded, each value built once, and failures raised in every waiting thread."""

import json
import threading
from concurrent.futures import Future
from typing import Any
from unittest.mock import Mock

import pytest

from constrained_k2 import Compiler, ConstrainedK2Error, SchemaTooCostly, Vocabulary
from constrained_k2.compiler import cache as cache_module
from constrained_k2.compiler.cache import LeastRecentlyUsed, RecentKeys
from constrained_k2.compiler.shared import DEFAULT_OPTIONS, cache_key
from constrained_k2.threads.compile_pool import PoolBusy
from tests.kit.grammars import request_of


def test_what_was_used_longest_ago_goes_first() -> None:
    cache: LeastRecentlyUsed[str, str] = LeastRecentlyUsed(10)
    made: list[str] = []

    def get(key: str, cost: int = 4) -> None:
        assert cache.get(key, lambda: (made.append(key) or key, cost)) == key

    for key in "abaca":
        get(key)
    assert made == ["a", "b", "c"]
    assert cache.peek("b") is None
    assert cache.spent == 8
    get("large", 100)
    assert cache.peek("large") == "large"
    assert cache.peek("a") is None
    cache.clear()
    assert cache.spent == 0
    assert cache.peek("large") is None


class Watched(Future[Any]):
    """Counts who waits for a value."""

    waiting = threading.Semaphore(0)

    def result(self, timeout: float | None = None) -> Any:
        self.waiting.release()
        return super().result(timeout)


def asked_for_at_once(cache: LeastRecentlyUsed[str, int], build: Any, count: int) -> list[Any]:
    """Return what ``count`` threads get; ``build`` is called once all threads but the building one wait."""
    found: list[Any] = []

    def build_when_all_wait() -> tuple[int, int]:
        for _ in range(count - 1):
            assert Watched.waiting.acquire(timeout=60), "not all others wait"
        value: tuple[int, int] = build()
        return value

    def ask() -> None:
        try:
            found.append(cache.get("key", build_when_all_wait))
        except ValueError as error:
            found.append(str(error))

    threads = [threading.Thread(target=ask) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return found


def test_a_value_is_made_once_however_many_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "Future", Watched)
    cache: LeastRecentlyUsed[str, int] = LeastRecentlyUsed(10)
    made: list[int] = []

    def build() -> tuple[int, int]:
        made.append(1)
        assert cache.get("another", lambda: (5, 1)) == 5, "another value waited"
        return 7, 1

    assert asked_for_at_once(cache, build, 6) == [7] * 6
    assert made == [1]


def test_a_failure_is_raised_in_all_who_wait_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "Future", Watched)
    cache: LeastRecentlyUsed[str, int] = LeastRecentlyUsed(10)
    made: list[int] = []

    def build() -> tuple[int, int]:
        made.append(1)
        raise ValueError("no")

    assert asked_for_at_once(cache, build, 4) == ["no"] * 4
    assert made == [1]
    assert cache.get("key", lambda: (1, 1)) == 1


def test_a_refusal_is_remembered_without_what_was_refused() -> None:
    compiler = Compiler(Vocabulary.of_bytes())
    schemas = ['{"properties": {"a": false}, "required": ["a"]}', json.dumps({"enum": list(range(20_000))})]
    for schema in schemas:
        with pytest.raises(ConstrainedK2Error) as refused:
            compiler.grammar(schema, "here")
        key: Any = ("llguidance", DEFAULT_OPTIONS, cache_key(schema))
        cached = compiler._grammars.get(key, lambda: pytest.fail("not remembered")).outcome
        assert isinstance(cached, ConstrainedK2Error) and cached is not refused.value
        assert (cached.__traceback__, cached.__context__, cached.__cause__) == (None, None, None)


def test_what_compiling_a_schema_took_is_remembered_with_it() -> None:
    compiler = Compiler(Vocabulary.of_bytes())
    compiled = request_of(compiler, {"properties": {"a": {"type": "string"}}}, check=False)
    assert compiled.slow_tools(60) == [0], "not known, so it may be slow"
    compiled.check_all([0])
    assert compiled.slow_tools(60) == []
    assert compiled.slow_tools(0) == [0]
    compiler.forget()
    assert compiled.slow_tools(60) == [0]


def test_keys_are_remembered_for_a_while_and_only_so_many() -> None:
    now = 0.0
    keys: RecentKeys[str] = RecentKeys(10.0, 2, clock=lambda: now)
    keys.add("a")
    now = 5.0
    keys.add("b")
    assert "a" in keys and "b" in keys
    keys.add("c")
    assert "a" not in keys and "c" in keys
    now = 12.0
    keys.add("b")
    now = 16.0
    assert "b" in keys and "c" not in keys
    keys.clear()
    assert "b" not in keys


@pytest.mark.parametrize(("error", "attempts"), [(TimeoutError, 1), (PoolBusy, 3)])
def test_a_schema_that_took_too_long_is_not_tried_again_at_once(
    small_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch, error: type[TimeoutError], attempts: int
) -> None:
    """A busy pool says nothing about the schema."""
    for retry_seconds, expected in ((60.0, attempts), (0.0, 3)):
        compiler = Compiler(small_vocabulary, retry_seconds=retry_seconds)
        build = Mock(side_effect=error("too long"))
        monkeypatch.setattr(compiler, "_build", build)
        for _ in range(3):
            with pytest.raises(SchemaTooCostly, match="too long"):
                compiler.grammar("{}", "tools[0]")
        assert build.call_count == expected
