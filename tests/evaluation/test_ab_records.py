"""The answers of a run: whatever is written can be read, also after a kill."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from constrained_k2.evaluation.ab.directory import RunDirectory, Sampling, begin, open_run
from constrained_k2.evaluation.answer import SUCCESS, Record
from constrained_k2.evaluation.sample import read_sample
from tests.evaluation.ab_samples import body
from tests.evaluation.fake_endpoint import GOOD_CALL


def begun(path: Path) -> RunDirectory:
    return begin(path, "test", [read_sample(body(), 1)], Sampling())


def test_records_of_any_shape(tmp_path: Path) -> None:
    directory = begun(tmp_path)
    odd = Record("k", 1, SUCCESS, content="\ud800 \u2028 \n <|im_end|>\0", calls=(GOOD_CALL,), gaps_ms=(0.5,))
    directory.add("a", odd)
    directory.add("a", failed := Record("k", 2, "failed"))
    directory.add("b ' \"; drop", odd)
    again = open_run(tmp_path)
    assert list(again.records("a")) == [odd, failed]
    assert list(again.records("b ' \"; drop")) == [odd]
    assert again.done_keys("a") == {("k", 1), ("k", 2)}
    assert again.done_keys("a", but_failed=True) == {("k", 1)}
    again.add("a", better := replace(failed, status=SUCCESS))
    assert list(directory.records("a")) == [odd, better]


def test_an_answer_that_was_stored_survives_a_kill(tmp_path: Path) -> None:
    directory = begun(tmp_path)
    directory.add("a", Record("k", 0, SUCCESS))
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from constrained_k2.evaluation.ab.directory import open_run\n"
        "from constrained_k2.evaluation.answer import Record\n"
        "run = open_run(Path(sys.argv[1])); run.add('a', Record('k', 1, 'success'))\n"
        "run.database.execute('begin'); run.add('a', Record('k', 2, 'success'))\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=os.environ, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert directory.done_keys("a") == {("k", 0), ("k", 1)}
