"""The changes by the constraint: greedy answers asked for again, their effects, and the report's section."""

import asyncio
import json
import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from constrained_k2 import ToolCall, Vocabulary, render_tool_calls
from constrained_k2.evaluation.ab import runner
from constrained_k2.evaluation.ab.arms import Arm
from constrained_k2.evaluation.ab.changes import ask_again, missing_changes
from constrained_k2.evaluation.ab.directory import Change, RunDirectory, Sampling, begin
from constrained_k2.evaluation.ab.effects import SiteStats, curve, effects
from constrained_k2.evaluation.ab.report import to_html, to_markdown, write_reports
from constrained_k2.evaluation.ab.report.tables import telling_lines
from constrained_k2.evaluation.ab.results import Results, score
from constrained_k2.evaluation.answer import SUCCESS, ChatAnswer, Record
from constrained_k2.evaluation.sample import read_sample
from constrained_k2.explain.turn import TurnExplainer
from constrained_k2.explain.view import Site, WantedToken
from constrained_k2.formats.kimi_k2 import KIMI_K2
from constrained_k2.testing import write_tokenizer
from tests.cli.conftest import Run
from tests.evaluation.fake_endpoint import GOOD_CALL, FakeEndpoint, body, write_lines
from tests.evaluation.test_ab_run import QUICK
from tests.explain.turns import ids_of

EVIL = "</td><script>alert(1)</script>\x1b[31m\u202e | [x](y) {{ 7 }}"


def call(**arguments: Any) -> tuple[tuple[str, str, str], ...]:
    return ((*GOOD_CALL[:2], json.dumps(arguments)),)


def unit(forbidden: float = 0.75, wanted: str = '"deg', **fields: Any) -> WantedToken:
    where = {"phase": "arguments", "tool": "get_weather", "pointer": "/unit", "keywords": ("enum",)} | fields
    return WantedToken(position=7, **where, wanted=wanted, written='"c', probability=0.5, forbidden=forbidden)


BYTES = Vocabulary.of_bytes()
EXPLAINER = TurnExplainer(BYTES)
TURN = render_tool_calls([ToolCall("get_weather", 0, '{"city":"Oslo","unit":"c"}')], BYTES)
UNIT = TURN.index(ord("}")) - 2  # the value of the unit
EXPECTED = {"calls": [{"name": "get_weather", "arguments": {"city": "Oslo", "unit": "c"}}]}


def started(path: Path, count: int = 4, **fields: Any) -> RunDirectory:
    bodies = (body(f"#{number}", expected=EXPECTED, **fields) for number in range(count))
    samples = [read_sample(value, number) for number, value in enumerate(bodies, 1)]
    return begin(path / "run", "test", samples, Sampling(temperature=0.7))


def ask(directory: RunDirectory, arm: Arm, count: int = 100) -> list[str]:
    said: list[str] = []
    how: dict[str, Any] = {"limits": replace(QUICK, concurrency=2), "count": count, "say": said.append}
    asyncio.run(ask_again(directory, [Arm("plain", arm.url), arm], EXPLAINER, **how))
    return said


def test_the_constrained_arm_is_asked_again(tmp_path: Path) -> None:
    fake = {"calls": call(city="Oslo", unit="c"), "off": {"calls": call(city="Oslo", unit="x")}, "ids": TURN}
    with FakeEndpoint("vllm") as endpoint:
        directory = started(tmp_path, fake=fake)
        arm = Arm("ours", endpoint.url, "constrained", body={"temperature": 1, "vllm_xargs": {"x": "y"}})
        endpoint.wanted[len("the prompt") + UNIT] = ord("k")
        assert ask(directory, arm, 2) == ["Asking ours again at temperature 0, 2 requests …"]
        sent = sorted((each["vllm_xargs"].get("constrained_k2", "on"), each["temperature"]) for each in endpoint.bodies)
        assert sent == [("off", 0), ("off", 0), ("on", 0), ("on", 0)]
        for each in endpoint.bodies:
            assert each["vllm_xargs"]["x"] == "y" and each["return_token_ids"] and "stream" not in each
        assert len(missing_changes(directory, arm, 4)) == 2
        assert ask(directory, arm) == ["Asking ours again at temperature 0, 2 requests …"]
        assert ask(directory, arm) == []
    changes = list(directory.changes())
    assert len(changes) == len({change.key for change in changes}) == 4
    change = changes[0]
    assert change.is_whole and not change.error and change.examined == len(TURN)
    wanted = WantedToken(UNIT, "arguments", "get_weather", "/unit", ("enum",), "k", "c", 0.9, 0.9)
    assert change.overrides == (wanted,)
    assert change.constrained.calls == call(city="Oslo", unit="c")
    assert change.unconstrained.calls == call(city="Oslo", unit="x")
    assert change.constrained_logprobs == pytest.approx([-(each % 10) * math.log(2) for each in TURN], abs=1e-4)


@pytest.mark.parametrize(
    ("owner", "fake", "completion", "count", "requests", "words"),
    [
        ("somebody", {}, None, 40, 0, ""),  # no vLLM
        ("vllm", {"ids": [99_999]}, None, 40, 8, "another tokenizer"),
        ("vllm", {"fault": "400"}, None, 40, 8, "400"),
        ("vllm", {"ids": [*TURN[:UNIT], ord("k")]}, None, 1, 2, "forbids what the server wrote at /unit"),
        ("vllm", {"ids": TURN}, '{"choices": [{"prompt_logprobs": [null]}]}', 1, 2, "no probability"),
    ],
)
def test_what_cannot_be_explained_is_named_and_soon_left_alone(
    owner: str, fake: Any, completion: str | None, count: int, requests: int, words: str, tmp_path: Path
) -> None:
    with FakeEndpoint(owner) as endpoint:
        endpoint.replaced |= {"/v1/completions": (200, completion)} if completion else {}
        directory = started(tmp_path, count, fake=fake)
        ask(directory, Arm("ours", endpoint.url, "constrained"))
        assert len(endpoint.asked) == requests
    changes = list(directory.changes())
    assert len(changes) == requests // 2
    assert all(words in change.error and not change.is_whole for change in changes)


def saved(path: Path, changes: list[Change], count: int = 4) -> Results:
    """A scored run with these changes, of its samples in turn."""
    with FakeEndpoint() as endpoint:
        directory = started(path, count)
        arms = [Arm("unconstrained", endpoint.url, "unconstrained"), Arm("ours", endpoint.url, "constrained")]
        asyncio.run(runner.run(directory, arms, limits=QUICK))
    for change, sample in zip(changes, list(directory.read_samples()), strict=False):
        directory.add_change(replace(change, key=sample.key))
    return score(directory)


def change(overrides: tuple[WantedToken, ...], *, right: bool, was_right: bool) -> Change:
    def answer(unit: str) -> Record:
        return Record("", 0, SUCCESS, finish_reason="tool_calls", calls=call(city="Oslo", unit=unit))

    answers = answer("c" if right else "f"), answer("c" if was_right else "degrees")
    return Change("ours", "", *answers, overrides, 20)


CHANGES = [
    change((unit(0.75), unit(0.95)), right=True, was_right=False),
    change((unit(0.95),), right=False, was_right=True),
    change((unit(1.0, pointer="/days/3", keywords=("type", "minimum")),), right=False, was_right=False),
    change((), right=True, was_right=True),
]


def test_the_effects_of_known_changes(tmp_path: Path) -> None:
    results = saved(tmp_path, CHANGES)
    (found,) = results.effects
    assert (found.answers, found.left_out, found.examined, found.overrides) == (4, 0, 80, 4)
    place, other = found.places
    # In the first answer, the value is another one without the constraint; in the second, the right one.
    values, tokens = Counter({('"degrees"', '"c"'): 1, ('"c"', '"f"'): 1}), Counter({('"deg', '"c'): 3})
    assert place == SiteStats(Site("arguments", "get_weather", "/unit", ("enum",)), 2, 3, 1, 1, 1, tokens, values)
    assert (other.site.pointer, other.change) == ("/days/*", (('"deg', '"c'), 1))
    assert found.most_informative() == [place, other]
    (scores,) = json.loads(json.dumps(results.to_json(), allow_nan=False))["changes"]
    assert [(each["pointer"], each["repaired"]) for each in scores["places"]] == [("/unit", 1), ("/days/*", 0)]


def test_the_last_change_of_a_sample_counts_and_broken_ones_are_left_out() -> None:
    sample = read_sample(body(expected=EXPECTED), 1)
    broken = replace(CHANGES[0], key=sample.key, overrides=None, error="why not")
    whole = replace(CHANGES[0], key=sample.key)
    assert not effects([], {}, KIMI_K2)
    assert not effects([replace(whole, key="of another run")], {sample.key: sample}, KIMI_K2)
    (found,) = effects([whole, broken], {sample.key: sample}, KIMI_K2)
    assert (found.answers, found.left_out, found.error) == (0, 1, "why not")
    (found,) = effects([broken, whole], {sample.key: sample}, KIMI_K2)
    assert (found.answers, found.left_out) == (1, 0)


def test_the_reports_have_the_section(tmp_path: Path) -> None:
    results = saved(tmp_path, CHANGES)
    html, markdown = to_html(results), to_markdown(results)
    assert "<h2>What the constraint changed</h2>" in html and "## What the constraint changed" in markdown
    assert '“"deg” → “"c” (1)' in markdown.replace("\\", "")
    assert list(telling_lines(results)) == [
        "What the constraint changed, in 4 greedy answers:",
        '  get_weather /unit, enum: "degrees" → "c" (1)',
        "    answers overridden: 2; 1 right, 1 of them wrong without it, 1 wrong that were right",
        '  get_weather /days/*, type, minimum: “"deg” → “"c” (1)',
        "    answers overridden: 1; 0 right, 0 of them wrong without it, 0 wrong that were right",
    ]


def test_each_constrained_arm_has_its_section_if_it_was_asked_again(tmp_path: Path) -> None:
    html = to_html(saved(tmp_path, [*CHANGES[:2], *(replace(each, arm="other") for each in CHANGES[2:])]))
    assert all(f"<h2>What the constraint changed: {arm}</h2>" in html for arm in ("ours", "other"))
    none = saved(tmp_path / "none", [])
    assert not none.effects and not list(telling_lines(none))
    assert "What the constraint changed" not in to_html(none)
    none_whole = saved(tmp_path / "none whole", [replace(CHANGES[0], overrides=None, error=EVIL)])
    assert none_whole.effects[0].answers == 0
    assert "left out" in to_html(none_whole) and "<script>alert" not in to_html(none_whole)


def test_hostile_texts_stay_text(tmp_path: Path) -> None:
    hostile = unit(tool=EVIL, pointer=f"/{EVIL}", keywords=(EVIL,), wanted=EVIL)
    results = saved(tmp_path, [change((hostile,), right=False, was_right=True)])
    html, markdown = to_html(results), to_markdown(results)
    assert "<script>alert" not in html and "&lt;script&gt;" in html
    for text in (html, markdown, "\n".join(telling_lines(results))):
        assert not re.search("[\x1b\u202e]", text)
    (row,) = (line for line in markdown.splitlines() if line.startswith("|") and "alert" in line)
    assert len(re.findall(r"(?<!\\)\|", row)) == 9
    assert [path.exists() for path in write_reports(results)] == [True] * 3


def change_of(number: int, chances: tuple[float, ...], names: tuple[str, ...], *, declined: bool = False) -> Change:
    calls = tuple((f"functions.{name}:{at}", name, "{}") for at, name in enumerate(names))
    record = Record.of(ChatAnswer("tool_calls", calls=calls, declined=declined), f"{number}")
    return Change("nearest", f"{number}", record, record, (), chances=chances)


def test_the_threshold_with_the_fewest_faults_in_one_half_is_chosen() -> None:
    samples = {f"{number}": read_sample(body(expected=EXPECTED), number) for number in range(6)}
    changes = [
        change_of(0, (0.15,), ("other",)),  # of the first half
        change_of(1, (0.3,), ("other",)),
        change_of(2, (0.6, 0.1), ("get_weather", "other")),
        change_of(3, (0.1,), ("get_weather",)),
        change_of(4, (0.45,), ("get_weather",)),
        change_of(5, (), ()),
    ]
    found = curve(changes, samples)
    assert found is not None and found.chosen == 0.2
    outcomes = {outcome.threshold: outcome[1:] for outcome in found.first}
    assert outcomes[0.0] == (2, 0, 0, 0)
    assert outcomes[0.2] == (0, 2, 2, 0)
    assert outcomes[0.5] == (0, 3, 2, 1)
    outcomes = {outcome.threshold: outcome[1:] for outcome in found.second}
    assert outcomes[0.2] == (1, 1, 0, 1)
    assert curve([change_of(0, (0.1,), (), declined=True)], samples) is None
    assert curve([change_of(0, (), ())], samples) is None


@pytest.mark.slow
def test_the_command_asks_again(tmp_path: Path, run: Run) -> None:
    write_tokenizer(tmp_path)
    vocabulary = Vocabulary.from_pretrained(tmp_path)
    fake = {"calls": call(city="Oslo"), "ids": ids_of("Hi<|im_end|>", vocabulary)}
    samples = write_lines(tmp_path / "s.jsonl", [body(f"#{number}", fake=fake) for number in range(3)])
    with FakeEndpoint("vllm") as endpoint:
        command = ["ab", endpoint.url, "--samples", str(samples), "--output", str(tmp_path / "run")]
        without = run(*command)
        assert "it needs --tokenizer" in without.err
        command += ["--tokenizer", str(tmp_path), "--explained"]
        none = run(*command, "0")
        endpoint.wanted[len("the prompt") + 1] = vocabulary.special_tokens["<|tool_call_begin|>"]
        two = run(*command, "2")
        with pytest.raises(SystemExit):
            run(*command, "-1")
    assert [said.code for said in (without, none, two)] == [0, 0, 0]
    assert "What the constraint changed" not in without.out + none.out
    assert "What the constraint changed, in 2 greedy answers:" in two.out
