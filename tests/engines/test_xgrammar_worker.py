"""xgrammar's worker process: hostile schemas stay within limits, and it ends with its parent."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from constrained_k2 import SchemaTooCostly, UnsupportedSchema, Vocabulary
from constrained_k2.engines.xgrammar import worker as xgrammar_worker
from constrained_k2.engines.xgrammar.engine import XGrammarEngine
from tests.kit.grammars import takes

pytestmark = pytest.mark.slow  # each test starts a process that compiles for seconds


def many_optional(count: int) -> Any:
    return {"type": "object", "properties": {f"p{number}": {"type": "boolean"} for number in range(count)}}


HOSTILE = {
    "properties": many_optional(4000),
    "counted": many_optional(900) | {"minProperties": 450, "maxProperties": 460, "additionalProperties": False},
    "backtracking": {"properties": {"a": {"pattern": "^(a*)*(a*)*(a*)*$", "enum": ["a" * 200 + "b"]}}},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_stay_within_the_budget(name: str) -> None:
    engine = XGrammarEngine(Vocabulary.of_bytes(), seconds=0.5)
    with pytest.raises(SchemaTooCostly) as refused:
        engine.compile(json.dumps(HOSTILE[name]))
    assert refused.value.budget in {"compile_ms", "compile_bytes"}
    assert refused.value.limit and refused.value.remedy
    assert engine.compile('{"type":"object"}').coverage.is_sound


def test_a_killed_worker_is_restarted() -> None:
    engine = XGrammarEngine(Vocabulary.of_bytes())
    process = engine._worker._process
    assert process is not None
    process.kill()
    process.wait()
    assert engine.compile('{"type":"object"}').cost_bytes > 0
    assert engine._worker._process is not process


def test_an_unexpected_error_is_not_reported_as_a_budget(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    limits = {"seconds": 5, "memory_bytes": 1 << 28}
    compiler: Any = None
    answer = xgrammar_worker._forked(compiler, "allow", b'{"type": "object"}', limits)
    assert json.loads(answer) == {"killed": xgrammar_worker.FAILED}
    assert "AttributeError" in capfd.readouterr().err
    engine = XGrammarEngine(Vocabulary.of_bytes())
    monkeypatch.setattr(engine._worker, "ask", lambda *_: answer)
    with pytest.raises(UnsupportedSchema, match="failed on this one"):
        engine.compile('{"type": "object"}')


def test_the_worker_ends_with_its_parent() -> None:
    code = (
        "from constrained_k2 import Vocabulary; from constrained_k2.engines.xgrammar.engine import XGrammarEngine; import os\n"
        "print(XGrammarEngine(Vocabulary.of_bytes())._worker._process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    for _ in range(100):
        try:
            os.kill(int(done.stdout), 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail("the worker outlives its parent")


def test_several_threads_may_compile_at_once(small_vocabulary: Vocabulary) -> None:
    engine = XGrammarEngine(small_vocabulary)
    found: dict[int, bool] = {}

    def compile_one(number: int) -> None:
        schema = {"type": "object", "properties": {"n": {"const": number}}, "required": ["n"]}
        matcher = engine.compile(json.dumps(schema)).matcher("schema")
        found[number] = takes(matcher, small_vocabulary.encode(f'{{"n":{number}}}'))

    threads = [threading.Thread(target=compile_one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(8), True)
