"""The compile pool: its effect on other threads, given-up work, forks, and precompiling."""

import os
import sys
import threading
import time
from collections.abc import Callable

import pytest

from constrained_k2 import Compiler, Vocabulary
from constrained_k2.threads.compile_pool import run_bounded
from constrained_k2.threads.interruptible import check_deadline


@pytest.fixture(autouse=True)
def nothing_compiles() -> None:
    """Waits for work that earlier tests gave up."""
    until(lambda: sys.getswitchinterval() > 0.0005)


def test_the_switch_interval_is_short_while_something_compiles() -> None:
    before = sys.getswitchinterval()
    inside: list[float] = []
    both = threading.Barrier(2)

    def work() -> None:
        both.wait(60)
        inside.append(sys.getswitchinterval())
        both.wait(60)

    threads = [threading.Thread(target=run_bounded, args=(work, 60)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    run_bounded(lambda: None, 60)
    assert inside == [pytest.approx(0.0005)] * 2
    assert sys.getswitchinterval() == before


def test_failed_and_given_up_work_restores_the_switch_interval() -> None:
    before = sys.getswitchinterval()
    go_on = threading.Event()
    assert run_bounded(lambda: 7, 5) == 7
    for seconds in (60, None):
        with pytest.raises(ZeroDivisionError):
            run_bounded(lambda: 1 / 0, seconds)
    with pytest.raises(TimeoutError, match="takes too long"):
        run_bounded(lambda: go_on.wait(60), 0.01)
    assert sys.getswitchinterval() < before, "it still runs"
    go_on.set()
    run_bounded(lambda: None, 60)
    until(lambda: sys.getswitchinterval() == before)  # the thread restores it after its work


@pytest.mark.slow
def test_only_cpu_time_counts_against_the_limit_and_given_up_work_stops_at_its_next_check() -> None:
    before = sys.getswitchinterval()

    def busy() -> None:
        while True:
            check_deadline()

    assert run_bounded(lambda: time.sleep(1.5) or "done", 1) == "done"
    with pytest.raises(TimeoutError):
        run_bounded(busy, 0.5)
    until(lambda: sys.getswitchinterval() == before)
    check_deadline()  # in a thread that does no such work


def test_a_fork_restores_the_switch_interval() -> None:
    before = sys.getswitchinterval()
    go_on = threading.Event()
    beside = threading.Thread(target=run_bounded, args=(lambda: go_on.wait(60), 60))
    beside.start()
    until(lambda: sys.getswitchinterval() < before)
    child = os.fork()
    if child == 0:
        os._exit(0 if sys.getswitchinterval() == before else 1)
    _, status = os.waitpid(child, 0)
    go_on.set()
    beside.join(60)
    until(lambda: sys.getswitchinterval() == before)  # the thread restores it after its work
    assert os.waitstatus_to_exitcode(status) == 0


def test_without_a_thread_to_precompile_a_schema_compiles_on_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler(Vocabulary.of_bytes())

    def refuse(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    schema = '{"properties": {"a": {}}}'
    monkeypatch.setattr("_thread.start_new_thread", refuse)
    for _ in range(10):  # more than are prepared at once
        compiler.precompile(schema)
    monkeypatch.undo()
    assert compiler.compile_time(schema) is None
    assert compiler.grammar(schema, "here")
    assert compiler.compile_time(schema) is not None


def test_precompiled_schemas_are_not_compiled_again() -> None:
    compiler = Compiler(Vocabulary.of_bytes())
    schemas = [f'{{"properties": {{"{number}": {{}}}}}}' for number in range(20)]

    def all_prepared() -> bool:
        for schema in schemas:
            compiler.precompile(schema)  # no more than some are begun at once
        return all(compiler.compile_time(schema) is not None for schema in schemas)

    until(all_prepared)
    noted: list[float | None] = []
    for schema in schemas:
        compiler.grammar(schema, "here", note=noted.append)
    assert noted == [None] * 20, "something was compiled again"


def until(is_so: Callable[[], bool]) -> None:
    for _ in range(6_000):
        if is_so():
            return
        time.sleep(0.01)
    pytest.fail("a minute has passed")
