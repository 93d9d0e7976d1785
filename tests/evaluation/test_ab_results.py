"""The results of an A/B run: figures, comparisons, findings, server metrics, and what the reports show of them."""

import asyncio
import base64
import json
import re
from collections.abc import Collection
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from constrained_k2.errors import InvalidRequest
from constrained_k2.evaluation import server_metrics
from constrained_k2.evaluation.ab import compare
from constrained_k2.evaluation.ab.arms import Arm
from constrained_k2.evaluation.ab.directory import RunDirectory, Sampling, begin, open_run
from constrained_k2.evaluation.ab.figures import FIGURES, Figure, totals, value
from constrained_k2.evaluation.ab.latency import Histogram
from constrained_k2.evaluation.ab.report import plots, to_markdown, write_reports
from constrained_k2.evaluation.ab.report.examples import as_markdown, contrast, shown
from constrained_k2.evaluation.ab.results import score
from constrained_k2.evaluation.answer import SUCCESS, Record
from constrained_k2.evaluation.client import BodyLimits
from constrained_k2.evaluation.judge import COLUMNS
from constrained_k2.evaluation.sample import read_sample
from constrained_k2.evaluation.server_metrics import growth, masked_argmax_share, parse_counters, total
from constrained_k2.formats.base import WireFormat
from constrained_k2.formats.kimi_k2 import KIMI_K2
from constrained_k2.formats.kimi_k3 import KIMI_K3
from tests.cli.conftest import Run
from tests.evaluation.fake_endpoint import FakeEndpoint, body

GOOD = (("functions.get_weather:0", "get_weather", '{"city": "Oslo"}'),)
BAD = (("functions.get_weather:0", "get_weather", '{"city": 3}'),)
EVIL = "</pre><script>alert(1)</script><|im_end|>\x1b[31m\u202e\ud800"
ANSWERED: dict[str, Any] = {"status": SUCCESS, "finish_reason": "tool_calls", "ttft_ms": 5.0, "duration_ms": 20.0,
                            "completion_tokens": 10, "gaps_ms": (1.0, 2.0)}  # fmt: skip
SILENT: dict[str, Any] = {"calls": (), "finish_reason": "stop"}
CUT: dict[str, Any] = {"calls": (), "finish_reason": "length"}
FAILED: dict[str, Any] = {"status": "failed", "failure": "timeout", "calls": ()}
RIGHT: list[dict[str, Any]] = [{}] * 60
WRONG: list[dict[str, Any]] = [{"calls": BAD}] * 60


def saved(
    path: Path,
    answers: dict[str, list[dict[str, Any]]],
    wire_format: WireFormat = KIMI_K2,
    *,
    calls_expected: int | None = None,
    **sampling: Any,
) -> RunDirectory:
    """A run whose records are known: arm -> the fields of each sample's record; an arm is constrained by its name.

    The first ``calls_expected`` samples, or all, ask for a call.
    """
    count = max(map(len, answers.values()))
    call = {"name": "get_weather", "arguments": {"city": "Oslo"}}
    asked = count if calls_expected is None else calls_expected
    expected = [{"calls": [call] if n < asked else []} for n in range(count)]
    bodies = (body(f"#{n} {EVIL}", expected=expected[n], category=f"odd | {n % 2} {EVIL}") for n in range(count))
    samples = [read_sample(value, number) for number, value in enumerate(bodies, 1)]
    directory = begin(path / "run", f"test {EVIL}", samples, Sampling(**sampling), wire_format)
    arms = [Arm(name, "http://x", name if name in {"constrained", "nearest"} else "plain") for name in answers]
    directory.add_arms(arms)
    for name, rows in answers.items():
        for sample, row in zip(samples, rows, strict=False):
            fields = ANSWERED | {key: value for key, value in row.items() if key != "repeated"}
            for repetition, calls in enumerate(row.get("repeated", [row.get("calls", GOOD)])):
                directory.add(name, Record(sample.key, repetition, **fields | {"calls": calls}))
    return directory


def test_the_vendor_verifiers_figures_from_known_records(tmp_path: Path) -> None:
    # Of ten answers, eight end with tool_calls, six of them with valid calls; one failed; one said nothing.
    failed = {"status": "failed", "failure": "timeout", "finish_reason": ""}
    rows = [*RIGHT[:6], {"calls": BAD}, {"calls": ()}, SILENT, failed]
    arm = score(saved(tmp_path, {"a": rows})).to_json()["arms"]["a"]
    assert arm["k2vv_summary"] == {
        "model": "", "success_count": 9, "failure_count": 1, "finish_stop": 1, "finish_tool_calls": 8,
        "finish_others": 0, "finish_others_detail": {}, "schema_validation_error_count": 2,
        "successful_tool_call_count": 6,
    }  # fmt: skip
    figures = {name: found["value"] for name, found in arm["figures"].items()}
    assert figures["schema_accuracy"] == 6 / 8
    assert (figures["tool_call_precision"], figures["tool_call_recall"]) == (1.0, 8 / 9)
    assert figures["tool_call_f1"] == pytest.approx(2 * 1.0 * (8 / 9) / (1.0 + 8 / 9))
    assert (figures["right"], figures["failed"]) == (0.6, 0.1)
    assert arm["failures"] == {"invalid_arguments": 1, "missing_call": 2, "timeout": 1}


def test_arms_are_compared_in_pairs(tmp_path: Path) -> None:
    bad = [{"calls": BAD} if number % 3 == 0 else {} for number in range(60)]
    results = score(saved(tmp_path, {"plain": bad, "constrained": RIGHT}))
    assert results.baseline == "plain" and results.findings == []
    middle, low, high, *is_any = results.differences["constrained"]["schema_accuracy"]
    assert middle is not None and middle == pytest.approx(1 / 3) and 0.15 < low < middle < high < 0.5
    assert is_any == [False, False]  # neutral
    assert results.differences["constrained"]["valid"].is_better
    assert results.pairings["constrained"]["right"] == (0, 20, 2 * 0.5**20)
    own = results.intervals["constrained"]["schema_accuracy"]
    assert (own.value, own.high) == (1.0, 1.0) and own.low == pytest.approx(0.025 ** (1 / 60))
    hits = results.intervals["constrained"]["tool_call_f1"]  # each weighs two in f1, and is one answer
    assert hits.value == 1.0 and hits.low == pytest.approx(own.low)
    again = score(results.directory)
    assert again.to_json() == results.to_json()


def counted(figure: Figure, *, is_hit: bool) -> list[int]:
    """The counts of an answer that a figure counts in its denominator, and if ``is_hit`` in its numerator."""
    special = {
        "tool_call_f1": ({"tp": 1}, {"fp": 1}),
        "tool_call_precision": ({"tp": 1}, {"fp": 1}),
        "tool_call_recall": ({"tp": 1}, {"fn": 1}),
        "failed": ({"requests": 1}, {"requests": 1, "success": 1}),
    }
    hit, miss = special.get(figure.name, ({**figure.bottom, **figure.top}, dict(figure.bottom)))
    return [{"requests": 1, **(hit if is_hit else miss)}.get(name, 0) for name in COLUMNS]


@pytest.mark.parametrize(("hits", "pairing"), [({0}, (0, 0, 1.0)), (range(1, 10), (1, 9, 22 / 1024))])
def test_mcnemars_test(hits: Collection[int], pairing: tuple[float, ...]) -> None:
    figure = next(figure for figure in FIGURES if figure.name == "right")
    first, second = (
        np.array([counted(figure, is_hit=n in right) for n in range(12)], np.int32) for right in ({0}, hits)
    )
    assert compare.mcnemar(first, second, "right") == pytest.approx(pairing)


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
@pytest.mark.parametrize("is_higher", [True, False])
def test_a_report_says_of_each_figure_what_its_findings_say(tmp_path: Path, figure: Figure, is_higher: bool) -> None:
    few, many = (np.array([counted(figure, is_hit=n < hits) for n in range(60)], np.int32) for hits in (3, 40))
    tables = {"plain": few, "constrained": many} if is_higher else {"plain": many, "constrained": few}
    results = score(saved(tmp_path, {"plain": [{}], "constrained": [{}]}))
    results.intervals, results.differences = compare.intervals(tables, "plain")
    own = results.differences["constrained"][figure.name]
    assert (own.is_worse, own.is_better) == {
        "higher": (not is_higher, is_higher),
        "lower": (is_higher, not is_higher),
        "neutral": (False, False),
    }[figure.better]
    report = to_markdown(results)
    differences = report.partition("## Difference")[2].splitlines()
    (row,) = (line for line in differences if line.startswith(f"| {as_markdown(figure.title)} |"))
    assert row.endswith(f" {'worse' if own.is_worse else 'better' if own.is_better else 'neutral'} |")
    assert own.is_worse == any(f"{figure.title.strip()} is worse" in finding for finding in results.findings)
    assert own.is_worse <= ("No problem found" not in report)


FOUND = "Problems found:"
GOOD_OF_40 = [*RIGHT[:40], *[SILENT] * 20]  # where the last 20 samples ask for no call


@pytest.mark.parametrize(
    ("answers", "calls_expected", "baseline", "headline", "found", "clean"),
    [
        (
            {"plain": RIGHT, "constrained": [*WRONG[:20], *RIGHT[:39], FAILED]}, 60, None, FOUND,
            ["constrained: 20 answers with arguments that the schema does not accept, which",
             "constrained: 1 requests without an answer", "constrained: arguments valid is worse than in plain"], "plain:",
        ),
        (
            {"plain": GOOD_OF_40, "constrained": GOOD_OF_40, "nearest": RIGHT}, 40, None, FOUND,
            ["nearest: executable calls that were not asked for is worse than in plain (+33.3 points)"], "constrained:",
        ),
        (
            {"plain": GOOD_OF_40, "constrained": GOOD_OF_40, "nearest": [*RIGHT[:40], *[SILENT] * 8, *[CUT] * 12]}, 40, None, FOUND,
            ["nearest: cut off by max_tokens is worse than in plain"], "constrained:",
        ),
        (  # nearest improves, which is fine
            {"plain": RIGHT, "constrained": [*[CUT] * 20, *RIGHT[:40]], "nearest": RIGHT}, 60, "constrained", FOUND,
            ["constrained: cut off by max_tokens is worse than in plain (+33.3 points)"], "worse than in nearest",
        ),
        ({"plain": RIGHT, "constrained": WRONG}, 60, None, FOUND, [], "plain:"),
        ({"plain": RIGHT, "constrained": RIGHT, "stock": WRONG}, 60, None,
         "No problem found in constrained; 60 of 60 samples were compared with plain.", [], ":"),
        ({"plain": RIGHT, "stock": WRONG}, 60, None, "Not checked: this package constrains no arm of this run.", [], ":"),
        ({"constrained": RIGHT}, 60, None, "No problem found in constrained; no other arm was compared with it.", [], ":"),
    ],
    ids=["wrong", "unasked", "cut", "a constrained baseline", "all wrong", "right", "none constrained", "no other"],
)  # fmt: skip
def test_a_constrained_arm_that_is_wrong_or_worse_is_found(
    answers: Any, calls_expected: int, baseline: str | None, headline: str, found: list[str], clean: str, tmp_path: Path
) -> None:
    results = score(saved(tmp_path, answers, calls_expected=calls_expected), baseline=baseline)
    findings = "\n".join(results.findings)
    assert all(finding in findings for finding in found) and clean not in findings
    assert results.headline == headline and bool(findings) == (headline == FOUND)


def test_the_command_tells_the_findings(tmp_path: Path, run: Run) -> None:
    directory = saved(tmp_path, {"plain": GOOD_OF_40, "nearest": RIGHT}, calls_expected=40)
    said = run("ab", "--score-only", str(directory.path))
    assert said.code == 1 and "No problem found" not in said.out
    assert "nearest: executable calls that were not asked for is worse" in said.out


def test_the_baseline_is_chosen_or_the_first_arm_of_others_with_records(tmp_path: Path) -> None:
    directory = saved(tmp_path, {"a": RIGHT, "b": WRONG, "none": []})
    assert (score(directory).baseline, score(directory).findings) == ("a", [])
    assert score(directory, baseline="b").differences["a"]["right"].is_better
    for arm, problem in (("c", "there is no arm 'c'"), ("none", "arm none: has no record")):
        with pytest.raises(InvalidRequest, match=problem):
            score(directory, baseline=arm)
    directory = saved(tmp_path / "ours", {"nearest": [], "constrained": [{}]})
    assert score(directory).baseline == "constrained"


def test_only_samples_that_all_arms_answered_are_compared(tmp_path: Path) -> None:
    results = score(saved(tmp_path, {"a": RIGHT[:9], "b": RIGHT[:5], "none": []}))
    assert int(results.paired.sum()) == 5 and list(results.arms) == ["a", "b"]
    nothing = begin(tmp_path / "nothing", "test", [read_sample(body(), 1)], Sampling())
    nothing.add_arms([Arm("a", "http://x")])
    with pytest.raises(InvalidRequest, match="no arm has a record"):
        score(nothing)


def test_pass_hat_k(tmp_path: Path) -> None:
    rows = [{"repeated": [GOOD] * right + [BAD] * (4 - right)} for right in (4, 2, 0)]
    results = score(saved(tmp_path, {"a": rows}, repetitions=4))
    assert results.pass_hat["a"] == pytest.approx({1: 0.5, 2: (1 + 1 / 6) / 3, 3: 1 / 3, 4: 1 / 3})
    assert totals(results.rows("a"))["requests"] == 12


@pytest.mark.slow
def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    chance, covered = np.random.default_rng(5), 0
    for seed in range(100):
        table = np.zeros((80, len(COLUMNS)), np.int32)
        table[:, COLUMNS.index("requests")] = 1
        table[:, COLUMNS.index("right")] = chance.random(80) < 0.7
        own, _ = compare.intervals({"a": table}, "a", seed)
        interval = own["a"]["right"]
        covered += interval.low <= 0.7 <= interval.high
    assert 88 <= covered <= 99


def test_a_sum_of_nothing_is_no_figure(tmp_path: Path) -> None:
    results = score(saved(tmp_path, {"a": [FAILED]}))
    assert value(FIGURES[0], totals(results.rows("a"))) == (0, 0, None)
    for path in write_reports(results):
        assert path.stat().st_size > 100
    json.loads((results.directory.path / "scores.json").read_text(), parse_constant=pytest.fail)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_quantiles_are_right_to_a_few_percent(share: float) -> None:
    times = np.random.default_rng(0).lognormal(3, 1, 20_000)
    histogram = Histogram()
    histogram.add(times)
    assert histogram.quantile(share) == pytest.approx(np.quantile(times, share, method="inverted_cdf"), rel=0.03)
    assert Histogram().quantile(share) is None


def test_counters_of_a_server() -> None:
    examined = "".join(f'constrained_k2_examined_tokens_total{{engine="{n}"}} 25\n' for n in range(2))
    masked = "constrained_k2_masked_argmax_tokens_total"
    text = f"{examined}{masked} 5\nother 7\nconstrained_k2_x no\nconstrained_k2_examined_tokens_created 1e9\n"
    counters = parse_counters(text)
    assert len(counters) == 4 and masked_argmax_share(counters) == 0.1
    assert growth({"a": 1.0, "b": 9.0}, {"a": 3.0, "b": 4.0}) == {"a": 2.0, "b": 4.0}
    assert masked_argmax_share({}) is None
    for wrong in ("NaN", "+Inf", "-1", "51"):
        assert masked_argmax_share(parse_counters(f"{examined}{masked} {wrong}")) is None
    assert parse_counters('constrained_k2_a{="b"} 3\nconstrained_k2_b 3') == {"constrained_k2_b": 3.0}
    theirs = 'vllm:x_total{engine="0"} 2.0\nvllm:x_total{engine="1"} 3.0\nvllm:x_total_y 9\n'
    found = parse_counters(theirs + text, "vllm:")
    assert (len(found), total(found, "vllm:x_total"), total(found, "vllm:none")) == (3, 5.0, 0.0)


def test_metrics_that_never_come_cost_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stalling(FakeEndpoint):
        def answer(self, request: BaseHTTPRequestHandler, _body: Any) -> None:
            request.send_response(200)
            request.end_headers()
            while not self._ended.wait(0.05):
                request.wfile.write(b"# ")

    monkeypatch.setattr(server_metrics, "_LIMITS", BodyLimits(seconds=0.5))
    with Stalling() as endpoint:
        assert asyncio.run(server_metrics.read_counters(endpoint.url)) == {}


def test_nothing_from_outside_gets_into_the_page(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"calls": ((EVIL, EVIL, EVIL),), "content": EVIL, "raw": EVIL, "prompt_tail": EVIL},
        {"status": "failed", "failure": "server_error", "error": EVIL, "calls": ()},
        {"calls": BAD},
    ]
    results = score(saved(tmp_path, {"plain": rows, "constrained": rows}))
    write_reports(results)
    page = (results.directory.path / "report.html").read_text()
    assert page.count("<script") == 1 and "alert(1)" in page and "\x1b" not in page and "\u202e" not in page
    assert not re.search(r"""(?:src|href)\s*=(?!"data:image/svg\+xml;base64,)|url\(|@import""", page)
    assert '<span class="marker turn">&lt;|im_end|&gt;</span>' in page
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy and "default-src 'none'" in policy[1] and "unsafe" not in policy[1]
    assert " style=" not in page  # the policy would drop it
    markdown = (results.directory.path / "report.md").read_text()
    assert "<script" not in markdown.replace("\\<script", "")
    table = [line for line in markdown.splitlines() if line.startswith("| odd")]
    assert table and all(len(re.findall(r"(?<!\\)\|", line)) == 4 for line in table)


def test_text_that_is_shown() -> None:
    assert shown("<b>") == "&lt;b&gt;"
    assert shown("<think>a<|tool_call_end|>") == (
        '<span class="marker turn">&lt;think&gt;</span>a<span class="marker call">&lt;|tool_call_end|&gt;</span>'
    )
    assert len(shown("x" * 100_000)) < 5000
    assert as_markdown("a|b\n<c>") == r"a\|b \<c\>"


def test_a_run_of_kimi_k3_is_judged_and_shown_in_its_format(tmp_path: Path) -> None:
    made = [("call_1", *GOOD[0][1:]), ("call_2", *BAD[0][1:])]
    directory = saved(tmp_path, {"plain": [{"calls": made[:1]}, {"calls": made, "content": "So"}]}, KIMI_K3)
    results = score(open_run(directory.path))
    assert results.arms["plain"].kinds == {"invalid_arguments": 1}
    page = write_reports(results)[1].read_text()
    rebuilt = re.sub(r"<span class=.marker [a-z]*.>(.*?)</span>", r"\1", page)
    assert "So&lt;|close|&gt;response&lt;|sep|&gt;&lt;|open|&gt;tools&lt;|sep|&gt;" in rebuilt
    assert "call tool=&#34;get_weather&#34; index=&#34;2&#34;" in rebuilt
    assert "tool_calls_section" not in page
    directory.model_family = "Kimi K9"
    directory.write()
    with pytest.raises(InvalidRequest, match="unknown model family 'Kimi K9'"):
        score(open_run(directory.path))


@pytest.mark.slow
def test_plots_are_images_in_the_page(tmp_path: Path) -> None:
    results = score(saved(tmp_path, {"plain": [{"calls": BAD}, {}], "constrained": [{}, {}]}))
    for plot in (plots.accuracy(results), plots.failures(results), plots.latencies(results)):
        image = ET.fromstring(f"{plot[:-1]}/>")
        kind, _, data = image.attrib["src"].partition(",")
        assert kind == "data:image/svg+xml;base64" and image.get("alt")
        assert ET.fromstring(base64.b64decode(data)).tag == "{http://www.w3.org/2000/svg}svg"


def test_what_is_shown_is_wrong_in_form_and_set_right(tmp_path: Path) -> None:
    wrong: list[dict[str, Any]] = [{}, {"calls": (), "finish_reason": "stop"}, {"calls": BAD}, {"calls": BAD}]
    right: list[dict[str, Any]] = [{}, {}, {"calls": BAD}, {"calls": GOOD, "status": SUCCESS}]
    lines = contrast(score(saved(tmp_path, {"plain": wrong, "constrained": right})))
    assert lines[0].startswith("request 4: #3")
    assert not any(character in "".join(lines) for character in "\x1b\u202e\ud800\n")
    assert lines[1:] == [
        "plain: get_weather: $.city: 3 is not of type 'string'",
        '  calls functions.get_weather:0 {"city": 3}',
        "constrained: right",
        '  calls functions.get_weather:0 {"city": "Oslo"}',
    ]
    assert contrast(score(saved(tmp_path / "good", {"plain": [{}], "constrained": [{}]}))) == []
    assert contrast(score(saved(tmp_path / "plain", {"plain": wrong}))) == []
