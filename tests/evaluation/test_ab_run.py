"""A run against an endpoint: requests, faults, records that a kill leaves whole, and how a run goes on."""

import asyncio
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from constrained_k2.errors import InvalidRequest
from constrained_k2.evaluation.ab.arms import Arm
from constrained_k2.evaluation.ab.directory import FILE, RunDirectory, Sampling, begin, lock, open_run
from constrained_k2.evaluation.ab.live import LiveFigures
from constrained_k2.evaluation.ab.results import score
from constrained_k2.evaluation.ab.runner import AttemptLimits, run
from constrained_k2.evaluation.answer import SUCCESS, Record
from constrained_k2.evaluation.sample import read_sample
from constrained_k2.formats.kimi_k3 import KIMI_K3
from tests.evaluation.fake_endpoint import BROKEN, GOOD_CALL, FakeEndpoint, body, write_lines

QUICK = AttemptLimits(
    seconds=60, attempts=3, backoff=0.01, longest_wait=0.05, size=1 << 20, text=1 << 16, concurrency=4
)


def start(path: Path, *bodies: Any, **sampling: Any) -> RunDirectory:
    samples = [read_sample(value, number) for number, value in enumerate(bodies or [body()], 1)]
    return begin(path / "run", "test", samples, Sampling(**sampling))


def ask(directory: RunDirectory, *arms: Arm, limits: AttemptLimits = QUICK, **options: Any) -> list[Record]:
    """Send what remains; the records of the arm ``a``."""
    asyncio.run(run(directory, arms, limits=limits, **options))
    return list(directory.records("a"))


def test_a_good_answer_is_recorded_whole(endpoint: FakeEndpoint, tmp_path: Path) -> None:
    directory = start(tmp_path, body(fake={"content": "Let me see."}), temperature=0.3)
    (record,) = ask(directory, Arm("a", endpoint.url, "unconstrained", body={"vllm_xargs": {"x": "y"}}))
    timing = {name: getattr(record, name) for name in ("started", "ttft_ms", "duration_ms", "gaps_ms")}
    assert record == Record(
        record.key, 0, SUCCESS, finish_reason="tool_calls", content="Let me see.", calls=(GOOD_CALL,),
        prompt_tokens=11, completion_tokens=7, max_tokens=2048, **timing,
    )  # fmt: skip
    assert record.ttft_ms is not None and 0 < record.ttft_ms <= record.duration_ms and len(record.gaps_ms) == 3
    (sent,) = endpoint.bodies
    assert sent["vllm_xargs"] == {"constrained_k2": "off", "x": "y"}
    assert (sent["temperature"], sent["max_tokens"], sent["stream"], sent["model"]) == (0.3, 2048, True, "kimi-k2")
    assert "return_token_ids" not in sent


def test_vllm_is_asked_for_tokens_and_tells_the_text_of_what_went_wrong(tmp_path: Path) -> None:
    with FakeEndpoint("vllm") as endpoint:
        wrong = {"calls": [["x", "get_weather", "{}"]], "raw": "<|tool_call_begin|>"}
        directory = start(tmp_path, body(fake=wrong), body(fake={"content": "all good", "calls": []}))
        bad, good = ask(directory, Arm("a", endpoint.url), limits=replace(QUICK, concurrency=1))
        assert endpoint.bodies[0]["return_token_ids"] is True
    assert (bad.raw, bad.prompt_tail) == ("<|tool_call_begin|>ca", "the <|im_user|> prompt")
    assert (good.raw, good.prompt_tail) == ("", "")


FAULTS = {
    "hang": "timeout", "stall": "timeout", "drop": "connection", "429": "rate_limited", "500": "server_error",
    "503": "server_error", "400": "refused", "404": "refused", "html": "invalid_answer", "gzip": "invalid_answer",
    "cut": "broken_stream", "no done": "broken_stream", "broken": "invalid_answer", "wrong types": "invalid_answer",
    "no object": "invalid_answer", "deep": "invalid_answer", "error event": "stream_error", "endless": "too_long",
    "a number": "invalid_answer", "odd choices": "invalid_answer", "odd message": "invalid_answer",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_what_endpoints_do_wrong_is_recorded_as_that(fault: str, endpoint: FakeEndpoint, tmp_path: Path) -> None:
    directory = start(tmp_path, body(fake={"fault": fault}), body("a good one"))
    limits = replace(QUICK, seconds=2) if FAULTS[fault] == "timeout" else QUICK
    kinds = {record.status: record.failure for record in ask(directory, Arm("a", endpoint.url), limits=limits)}
    assert kinds == {"failed": FAULTS[fault], SUCCESS: ""}
    assert set(BROKEN) <= set(FAULTS)
    results = score(open_run(directory.path))
    assert results.arms["a"].kinds == {FAULTS[fault]: 1}


def test_answers_that_are_whole_but_odd(endpoint: FakeEndpoint, tmp_path: Path) -> None:
    no_id, broken = ("", *GOOD_CALL[1:]), (*GOOD_CALL[:2], '{"city": ')
    rows: list[tuple[dict[str, Any], Any]] = [
        ({"fault": "whole"}, (SUCCESS, "", (GOOD_CALL,), 3)),
        ({"calls": [no_id]}, (SUCCESS, "", (no_id,), 7)),
        ({"calls": [broken]}, (SUCCESS, "", (broken,), 7)),
        ({"finish": ""}, ("failed", "invalid_answer", (), None)),
        ({"finish": "x" * 70_000}, ("failed", "too_long", (), None)),
        ({"content": "x" * 70_000}, ("failed", "too_long", (), None)),
    ]
    directory = start(tmp_path, *(body(f"#{number}", fake=fake) for number, (fake, _) in enumerate(rows)))
    found = ask(directory, Arm("a", endpoint.url), limits=replace(QUICK, concurrency=1))
    assert [(each.status, each.failure, each.calls, each.completion_tokens) for each in found] == [
        said for _, said in rows
    ]
    kinds = score(directory).arms["a"].kinds
    assert kinds == {"missing_id": 1, "invalid_json": 1, "invalid_answer": 1, "too_long": 2}


@pytest.mark.parametrize(
    ("fault", "attempts"), [("429", 3), ("500", 3), ("drop", 3), ("400", 1), ("cut", 1), ("html", 1)]
)
def test_what_may_pass_is_asked_again_and_all_else_once(
    fault: str, attempts: int, endpoint: FakeEndpoint, tmp_path: Path
) -> None:
    fake = {"fault": fault, "fails": 2, "headers": {"retry-after": "0"}}
    (record,) = ask(start(tmp_path, body(fake=fake)), Arm("a", endpoint.url))
    assert (record.attempts, len(endpoint.asked)) == (attempts, attempts)
    assert record.status == (SUCCESS if attempts > 1 else "failed")


def test_a_server_that_went_away_is_not_waited_for_each_time(endpoint: FakeEndpoint, tmp_path: Path) -> None:
    directory = start(tmp_path, *(body(f"#{number}", fake={"fault": "drop"}) for number in range(12)))
    found = ask(directory, Arm("a", endpoint.url), limits=replace(QUICK, concurrency=1))
    assert [record.attempts for record in found][-8:] == [1] * 8


def test_arms_get_the_same_requests_in_turn(endpoint: FakeEndpoint, tmp_path: Path) -> None:
    directory = start(tmp_path, *(body(f"#{number}") for number in range(6)), repetitions=2)
    arms = [Arm(name, endpoint.url, model=name) for name in ("a", "b", "c")]
    ask(directory, *arms, limits=replace(QUICK, concurrency=1))
    seeds = [seed for _, seed in endpoint.asked]
    assert all(len(set(seeds[start : start + 3])) == 1 for start in range(0, 36, 3))
    assert len(set(seeds)) == 12
    assert {endpoint.asked[start][0] for start in range(0, 36, 3)} == {"a", "b", "c"}


def test_a_run_goes_on_where_it_was(endpoint: FakeEndpoint, tmp_path: Path) -> None:
    bodies = [body(f"#{number}") for number in range(6)]
    directory = start(tmp_path, *bodies)
    kept = ask(directory, Arm("a", endpoint.url))[:3]
    directory.database.execute("delete from records where rowid > 3")
    endpoint.asked.clear()
    again = start(tmp_path, *bodies)
    found = ask(again, Arm("a", endpoint.url), Arm("b", endpoint.url))
    assert (found[:3], len(found), len(endpoint.asked)) == (kept, 6, 3 + 6)
    assert again.done_keys("a") == again.done_keys("b")


def test_what_failed_is_asked_again_only_when_that_is_wanted(endpoint: FakeEndpoint, tmp_path: Path) -> None:
    directory = start(tmp_path, body(fake={"fault": "400", "fails": 1}), body("good"))
    for retry, good in ((False, 1), (False, 1), (True, 2)):
        found = ask(directory, Arm("a", endpoint.url), retry_failed=retry)
        assert ([record.status for record in found].count(SUCCESS), len(found)) == (good, 2)
    assert score(directory).arms["a"].table[:, 0].tolist() == [1, 1]
    assert score(directory).arms["a"].kinds == {}
    directory.add("a", replace(found[0], status="failed"))
    for retry, done in ((False, 2), (True, 1)):
        bars = LiveFigures(directory, [Arm("a", endpoint.url)], retry_failed=retry, is_shown=False)
        assert bars.tasks[0].completed == done


def test_a_directory_holds_one_run(endpoint: FakeEndpoint, tmp_path: Path) -> None:
    directory = start(tmp_path, body())
    ask(directory, Arm("a", endpoint.url))
    with pytest.raises(InvalidRequest, match="other samples"):
        start(tmp_path, body("else"))
    with pytest.raises(InvalidRequest, match="other sampling parameters"):
        start(tmp_path, body(), temperature=1)
    with pytest.raises(InvalidRequest, match="other models"):
        begin(directory.path, "test", directory.read_samples(), directory.sampling, KIMI_K3)
    with pytest.raises(InvalidRequest, match="arm a: the run has this arm with"):
        ask(start(tmp_path, body()), Arm("a", endpoint.url, "unconstrained"))
    with lock(directory.path), pytest.raises(InvalidRequest, match="another run is using it"):
        start(tmp_path, body())
    directory.database.execute("update run set value = '{}'")
    with pytest.raises(InvalidRequest, match="not a run of this version"):
        open_run(directory.path)


def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(
    endpoint: FakeEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert [record.status for record in ask(start(tmp_path), Arm("a", endpoint.url))] == [SUCCESS]


@pytest.mark.parametrize(
    ("status", "text", "words"),
    [(401, '{"error": {"message": "no key"}}', "401: no key"), (200, "[1]", "got `array`"), (200, "<html>", "not JSON"),
     (200, " " * (9 << 20), "longer than 8388608 bytes"), (200, '{"data": []}', "lists no model")],
)  # fmt: skip
def test_models_that_are_not_told(status: int, text: str, words: str, endpoint: FakeEndpoint, tmp_path: Path) -> None:
    endpoint.replaced["/v1/models"] = status, text
    with pytest.raises(InvalidRequest, match=words):
        ask(start(tmp_path), Arm("a", endpoint.url))
    found = ask(start(tmp_path), Arm("a", endpoint.url, model="kimi-k2"))
    assert [record.status for record in found] == [SUCCESS]


@pytest.mark.parametrize(
    ("status", "text"), [(404, "{}"), (500, "no"), (200, "{"), (200, " " * (9 << 20)), (200, '{"prompt": 7}')]
)
def test_a_text_that_is_not_told_costs_no_record(status: int, text: str, tmp_path: Path) -> None:
    with FakeEndpoint("vllm") as endpoint:
        endpoint.replaced["/detokenize"] = status, text
        wrong = {"calls": [["x", "get_weather", "{}"]]}
        directory = start(tmp_path, body(fake=wrong), body("again", fake=wrong))
        found = ask(directory, Arm("a", endpoint.url), limits=replace(QUICK, concurrency=1))
    assert [(record.status, record.raw, record.prompt_tail) for record in found] == [(SUCCESS, "", "")] * 2


def test_records_of_any_shape(tmp_path: Path) -> None:
    directory = start(tmp_path)
    odd = Record("k", 1, SUCCESS, content="\ud800 \u2028 \n <|im_end|>\0", calls=(GOOD_CALL,), gaps_ms=(0.5,))
    directory.add("a", odd)
    directory.add("a", failed := Record("k", 2, "failed"))
    directory.add("b ' \"; drop", odd)
    again = open_run(directory.path)
    assert list(again.records("a")) == [odd, failed]
    assert list(again.records("b ' \"; drop")) == [odd]
    assert again.done_keys("a") == {("k", 1), ("k", 2)}
    assert again.done_keys("a", but_failed=True) == {("k", 1)}
    again.add("a", better := replace(failed, status=SUCCESS))
    assert list(directory.records("a")) == [odd, better]


def memory(process: "subprocess.Popen[bytes]") -> float:
    """Resident MiB."""
    return psutil.Process(process.pid).memory_info().rss / (1 << 20)


def count_records(path: Path) -> int:
    where = f"file:{path / FILE}?mode=ro"
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(where, uri=True)) as database:  # not begun yet
        return int(database.execute("select count(*) from records").fetchone()[0])
    return 0


@pytest.mark.slow
def test_killed_runs_go_on_exactly_and_memory_stays_flat(endpoint: FakeEndpoint, tmp_path: Path) -> None:
    total, kills, arms, output = 800, 3, ("unconstrained", "constrained"), tmp_path / "run"
    samples = write_lines(tmp_path / "samples.jsonl", (body(f"Weather in place {n}?") for n in range(total // 2)))
    command = [sys.executable, "-m", "constrained_k2", "ab", endpoint.url, "--json"]
    command += ["--samples", str(samples), "--output", str(output)]
    for number in range(kills):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while process.poll() is None and count_records(output) < total * (number + 1) // (kills + 1):
            time.sleep(0.02)
        assert process.poll() is None, f"ended by itself with {process.returncode}"
        process.kill()
        process.wait()
    begun, used = count_records(output), dict[int, float]()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        done = count_records(output)
        if begun < done < total:
            with suppress(psutil.NoSuchProcess):
                used[done] = memory(process)
        time.sleep(0.02)
    assert process.returncode == 0
    run = open_run(output)
    found = [record for arm in arms for record in run.records(arm)]
    assert len(found) == total and all(record.status == SUCCESS for record in found)
    assert set(Counter(record.key for record in found).values()) == {len(arms)}
    assert total <= len(endpoint.asked) <= total + kills * 8  # what was out when the process was killed is asked again
    quarter = (total - begun) // 4  # one that went by between two looks has the look next to it
    early = [size for done, size in used.items() if done <= begun + quarter] or [*used.values()][:1]
    late = [size for done, size in used.items() if done > total - quarter] or [*used.values()][-1:]
    assert max(late) < max(early) + 20
