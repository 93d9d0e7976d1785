"""Whole engines on a random model: both routes, both ways of scheduling, and speculation, on the same batches of requests."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

import jsonschema
import xgrammar
from scipy.stats import chi2_contingency  # type: ignore[import-untyped]

from constrained_k2 import Compiler, ToolCallSpec, Vocabulary, parse_completion
from constrained_k2.testing import build_model
from scripts.bundled_samples.ordinary import TOOLS
from tests.kit.budget import LEVEL, tries
from tests.kit.tools import tool
from tests.vllm_plugin.draft_law import SURE
from tests.vllm_plugin.engine_run import run_in_its_own_process
from tests.vllm_plugin.weights import write_copying, write_random

pytestmark = [pytest.mark.server, pytest.mark.timeout(1200)]  # a test may start an engine or two first

SCHEMAS = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in TOOLS}
BACKEND = {"additional_config": {"constrained_k2": {"route": "structured_output"}}}
GREEDY = tries(40, everything=100)

CUT, MAX_TOKENS, RESERVE = 100, 80, 60
SAMPLED, TEMPERATURES, COLORS = 240, (1.0, 0.5), ["red", "green", "blue", "black", "white", "yellow"]
Run = Callable[[str], dict[str, Any]]


def mixed(vocabulary: Vocabulary) -> Iterator[dict[str, Any]]:
    """Greedy ones with every choice, inside reasoning and not; then sampled ones, with fields allowed together with tools."""
    for number in range(GREEDY):
        choice = ("required", "auto", "required", "none")[number % 4]
        spec = {"tools": TOOLS[: 1 + number % 6], "tool_choice": choice, "parallel_tool_calls": number % 3 != 0}
        if number % 8 == 1:  # of the others a random model means none, so that they are declined
            spec["undeclared_calls"] = "nearest"
        if number % 6 == 4:  # required, so that calls are made
            spec |= {"max_calls": 3, "repeated_calls": "forbid"}
        begun = [vocabulary.format.think_begin] if number % 5 == 0 else []
        prompt = [*vocabulary.encode(f"Request {number * 7919} please " * (1 + number % 3)), *begun]
        yield {"prompt": prompt, "params": constrained(spec, temperature=0.0, max_tokens=120)}
    spec = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    call_end, stop = vocabulary.format.call_end, vocabulary.format.turn_end
    text = "The same beginning of forty and more tokens for the cache of prefixes to be of use " * 2
    prompt = vocabulary.encode(text)
    for seed in range(12):
        yield {"prompt": prompt, "params": constrained(spec, seed=seed, max_tokens=900)}
    others: list[dict[str, Any]] = [
        {"n": 3, "logprobs": 2}, {"min_tokens": 300, "max_tokens": 900}, {"ignore_eos": True, "max_tokens": 300},
        {"repetition_penalty": 1.3, "presence_penalty": 1.0}, {"stop_token_ids": [call_end]},
        {"logit_bias": {stop: 100.0, 300: 100.0, call_end: -100.0}},
    ]  # fmt: skip
    for seed, fields in enumerate(others, 1):
        yield {"prompt": prompt, "params": constrained(spec, seed=seed, **fields)}
    yield {"prompt": prompt, "params": {"seed": 7, "max_tokens": 40}, "structured": {"regex": "ab+c"}}
    yield {"prompt": prompt, "params": {"seed": 8, "max_tokens": 40}, "structured": {"json": SCHEMAS["get_weather"]}}
    yield {"prompt": prompt, "params": {"seed": 9, "max_tokens": 40, "temperature": 0.0}}


def tagged(vocabulary: Vocabulary) -> Iterator[dict[str, Any]]:
    """Requests with vLLM's own structural tag; then others."""
    markers = vocabulary.format
    for number in range(48):
        tools = TOOLS[number % 4 : number % 4 + 3]
        named = {"type": "function", "function": {"name": tools[0]["function"]["name"]}}
        choice = ("required", "auto", named, "required")[number % 4]
        fields: dict[str, Any] = {"tools": list(tools), "tool_choice": choice, "parallel_tool_calls": number % 3 != 0}
        tag = xgrammar.get_model_structural_tag("kimi", reasoning="disabled", **fields)
        earlier = [markers.call_begin, *vocabulary.encode("functions.x:0")] * (number % 5)
        prompt = [*vocabulary.encode(f"Request {number}"), *earlier, *([markers.think_begin] * (number % 6 == 0))]
        params = {"max_tokens": 400, "seed": number, "extra_args": {"constrained_k2_finish_reserve": 80}}
        if number % 4 == 1:  # so that a random model calls something under tool_choice auto
            params["logit_bias"] = {markers.section_begin: 100.0}
        yield {"prompt": prompt, "params": params, "structured": {"structural_tag": tag.model_dump_json()}}
    yield {"prompt": vocabulary.encode("x"), "params": {"max_tokens": 20, "seed": 1}, "structured": {"regex": "ab+c"}}
    free = {"max_tokens": 40, "seed": 2, "logit_bias": {markers.call_begin: 100.0}, "skip_special_tokens": False}
    yield {"prompt": vocabulary.encode("x"), "params": free}


def cut(vocabulary: Vocabulary) -> Iterator[dict[str, Any]]:
    """At a ``max_tokens`` that cuts calls, each twice: without anything kept for the end, and with."""
    for number in range(CUT):
        tools = [TOOLS[number % len(TOOLS)]]
        spec = {"tools": tools, "tool_choice": "required", "parallel_tool_calls": number % 2 == 0}
        prompt = vocabulary.encode(f"Request {number * 7919} please")
        for reserve in (0, RESERVE):
            extra = {"constrained_k2": json.dumps(spec), "constrained_k2_finish_reserve": reserve}
            yield {"prompt": prompt, "params": {"seed": number, "max_tokens": MAX_TOKENS, "extra_args": extra}}


def sampled(vocabulary: Vocabulary) -> Iterator[dict[str, Any]]:
    """One request many times, at two temperatures, seeded and not. The prompt names a color, which may be drafted."""
    properties = {"color": {"enum": COLORS}, "level": {"type": "integer", "minimum": 0, "maximum": 9}}
    parameters = {"type": "object", "properties": properties, "required": [*properties]}
    spec = {
        "tools": [tool("paint", parameters)],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "undeclared_calls": "nearest",
    }
    prompt = vocabulary.encode(f'Paint it "{COLORS[1]}", please.')
    for number in range(SAMPLED):
        chance = {"temperature": TEMPERATURES[number % 2]} | ({"seed": number} if number % 4 < 2 else {})
        yield {"prompt": prompt, "params": constrained(spec, max_tokens=200, **chance)}


def free(vocabulary: Vocabulary) -> Iterator[dict[str, Any]]:
    """Greedy ones without tools: a draft is accepted if it is the model's likeliest token."""
    for number in range(12):
        yield {"prompt": vocabulary.encode(f"Request {number}"), "params": {"temperature": 0.0, "max_tokens": 60}}


def constrained(spec: dict[str, Any], **params: Any) -> dict[str, Any]:
    return {"max_tokens": 600, "extra_args": {"constrained_k2": json.dumps(spec)}} | params


@pytest.fixture(scope="module")
def run(model: Path, vocabulary: Vocabulary, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs an engine by its name, once; speculation with a model of other weights, or on the text itself."""
    directory = tmp_path_factory.mktemp("runs")
    other = build_model(directory / "draft", arch="llama", seed=1)
    ngram = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    draft = {"method": "draft_model", "model": str(other), "num_speculative_tokens": 3}
    copying, random = (
        {"method": "eagle3", "model": str(write(directory / write.__name__, model)), "num_speculative_tokens": 3}
        for write in (write_copying, write_random)
    )
    grammar = {"method": "custom_class", "model": "constrained_k2.vllm_plugin.GrammarProposer"}
    engines: dict[str, dict[str, Any]] = {
        "processor": {"logits_processors": ["constrained_k2.vllm_plugin:KimiK2LogitsProcessor"]},
        "backend": BACKEND,
        "backend, synchronous": BACKEND | {"async_scheduling": False},
        "ngram": BACKEND | {"speculative_config": ngram},
        "grammar": BACKEND | {"speculative_config": grammar | {"num_speculative_tokens": 6}},
        "draft model": BACKEND | {"speculative_config": draft},
        "draft model, synchronous": BACKEND | {"speculative_config": draft, "async_scheduling": False},
        "EAGLE-3": BACKEND | {"speculative_config": copying},
        "EAGLE-3, synchronous": BACKEND | {"speculative_config": copying, "async_scheduling": False},
        "EAGLE-3, random": BACKEND | {"speculative_config": random},
    }
    batches = {each.__name__: list(each(vocabulary)) for each in (mixed, tagged, cut, sampled, free)}
    done: dict[str, dict[str, Any]] = {}

    def once(name: str) -> dict[str, Any]:
        if name not in done:
            engine = {"dtype": "float32"} | engines[name]
            asked = {batch: batches[batch] for batch in BATCHES[name]}
            done[name] = run_in_its_own_process(directory / f"{name}.json", model, engine, asked)
        return done[name]

    return once


BATCHES: dict[str, tuple[str, ...]] = {
    "processor": ("mixed", "tagged", "cut"),
    "backend": ("mixed", "tagged", "sampled", "free"),
    "EAGLE-3": ("mixed", "cut", "sampled", "free"),
    "ngram": ("mixed", "cut", "sampled"),
    "grammar": ("mixed", "cut", "sampled") if LEVEL == "all" else ("cut", "sampled"),
    "backend, synchronous": ("mixed",),
    "EAGLE-3, synchronous": ("mixed", "sampled"),
    "EAGLE-3, random": ("mixed", "sampled", "free"),
    "draft model": ("mixed", "sampled"),
    "draft model, synchronous": ("mixed", "sampled"),
}
SPECULATING = [name for name in BATCHES if name not in {"processor", "backend", "backend, synchronous"}]
OTHERS = ["backend", "backend, synchronous", *SPECULATING]
SMALLEST = {"processor", "backend", "EAGLE-3"}  # each route; several tokens a step


def by_name(*names: str, default: set[str] = SMALLEST) -> pytest.MarkDecorator:
    marked = [pytest.param(name, marks=() if name in default else pytest.mark.only_all) for name in names]
    return pytest.mark.parametrize("name", marked)


@by_name(*OTHERS)
def test_greedy_output_is_that_of_the_other_route(run: Run, name: str) -> None:
    answers, expected = run(name)["mixed"]["answers"][:GREEDY], run("processor")["mixed"]["answers"][:GREEDY]
    assert [answer[0]["ids"] for answer in answers] == [answer[0]["ids"] for answer in expected]
    assert sum(len(answer[0]["ids"]) for answer in answers) > 40 * GREEDY


@by_name(*SPECULATING, default=SMALLEST | {"grammar"})
def test_drafts_change_no_distribution(run: Run, vocabulary: Vocabulary, name: str) -> None:
    """As :mod:`tests.vllm_plugin.draft_law`, in whole engines: values are as frequent with drafts as without."""
    found = [frequencies(run(each)["sampled"]["answers"], vocabulary) for each in ("backend", name)]
    assert found[0].keys() == found[1].keys()
    for key in found[0]:
        values = sorted({value for counts in found for value in counts[key]})
        table = [[counts[key][value] for value in values] for counts in found]
        assert len(values) == 1 or chi2_contingency(table).pvalue > SURE, (key, values, table)
    metrics = run(name)["sampled"]["metrics"]
    assert metrics["vllm:spec_decode_num_drafts"] > SAMPLED


def frequencies(answers: list[Any], vocabulary: Vocabulary) -> dict[tuple[float, str], Counter[str]]:
    """The number of calls with each value, by temperature and key."""
    found: dict[tuple[float, str], Counter[str]] = {}
    for number, (answer,) in enumerate(answers):
        (call,) = parse_completion(answer["ids"], vocabulary).tool_calls
        for key, value in json.loads(call.arguments).items():
            found.setdefault((TEMPERATURES[number % 2], key), Counter())[str(value)] += 1
    return found


@by_name("processor", *OTHERS)
def test_no_token_is_outside_the_grammar(run: Run, vocabulary: Vocabulary, name: str) -> None:
    compiler = Compiler(vocabulary, undeclared_calls="decline")
    served = refused = declined = 0
    for request, answer in zip(mixed(vocabulary), run(name)["mixed"]["answers"], strict=True):
        spec = request["params"].get("extra_args", {}).get("constrained_k2")
        if isinstance(answer, dict):  # vLLM takes no logit_bias under speculative decoding
            assert "logit_bias" in request["params"] and name in SPECULATING, answer
            refused += 1
            continue
        for one in answer if spec else ():
            in_reasoning = request["prompt"][-1] == vocabulary.format.think_begin
            matcher = compiler.compile(ToolCallSpec.from_json(spec)).matcher(in_reasoning=in_reasoning)
            stops = [at for at, token in enumerate(one["ids"]) if token in vocabulary.format.stop_ids]
            end = stops[0] + 1 if stops else len(one["ids"])
            assert matcher.accept_tokens(one["ids"][:end])
            assert set(one["ids"][end:]) <= set(vocabulary.format.stop_ids)  # ignore_eos
            declined += matcher.has_declined
            for call in parse_completion(one["ids"][:end], vocabulary).tool_calls:
                jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
                served += 1
    assert served > 20 and declined


@by_name("backend", *SPECULATING)
def test_requests_of_others_beside_ours(run: Run, name: str) -> None:
    regex, weather, free = run(name)["mixed"]["answers"][-3:]
    assert regex[0]["text"].startswith("ab") and set(regex[0]["text"]) <= set("abc")
    assert weather[0]["text"].startswith("{")
    assert free[0]["ids"] == run("processor")["mixed"]["answers"][-1][0]["ids"]


@by_name(*(name for name in SPECULATING if name != "EAGLE-3, random"))
def test_more_than_one_token_a_step(run: Run, name: str) -> None:
    metrics = run(name)["mixed"]["metrics"]
    steps, accepted = metrics["vllm:spec_decode_num_drafts"], metrics["vllm:spec_decode_num_accepted_tokens"]
    assert 1 + accepted / steps > 1.2


@by_name("EAGLE-3", "EAGLE-3, random")
def test_heads_of_both_ends_without_tools(run: Run, name: str) -> None:
    found = run(name)["free"]
    assert found["answers"] == run("backend")["free"]["answers"]
    metrics = found["metrics"]
    share = metrics["vllm:spec_decode_num_accepted_tokens"] / metrics["vllm:spec_decode_num_draft_tokens"]
    assert share > 0.5 if name == "EAGLE-3" else share < 0.1


@pytest.mark.parametrize("name", ["backend", "processor"])
def test_tagged_requests_are_ours(run: Run, vocabulary: Vocabulary, name: str) -> None:
    asked, done = list(tagged(vocabulary)), run(name)["tagged"]
    called = 0
    for number, (request, answer) in enumerate(zip(asked[:48], done["answers"], strict=False)):
        (one,) = answer
        in_reasoning = request["prompt"][-1] == vocabulary.format.think_begin
        read = parse_completion(one["ids"], vocabulary, in_reasoning=in_reasoning)
        names = [tool["function"]["name"] for tool in TOOLS[number % 4 : number % 4 + 3]]
        assert not read.cut_calls
        assert all(call.index == at for at, call in enumerate(read.tool_calls, number % 5))
        for call in read.tool_calls:
            assert call.name in (names[:1] if number % 4 == 2 else names)
            jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
        if number % 4 != 1:
            assert read.tool_calls and not read.content
        if number % 3 == 0 or number % 4 == 2:
            assert len(read.tool_calls) <= 1
        called += len(read.tool_calls)
    assert called >= 48
    assert done["answers"][48][0]["text"].startswith("ab")  # vLLM's own structured outputs, as before
    assert done["totals"]["adopted_requests tag"] == 48 and done["totals"]["left_requests format"] == 0
    assert done["totals"]["unconstrained_calls"] == 40  # the last request: nothing asked for a constraint


@by_name("processor", "ngram", "grammar", "EAGLE-3", default=SMALLEST | {"grammar"})
def test_no_call_is_cut_where_tokens_are_kept_for_its_end(run: Run, vocabulary: Vocabulary, name: str) -> None:
    answers = [answer[0] for answer in run(name)["cut"]["answers"]]
    without, kept = answers[::2], answers[1::2]
    cut_without, cut_kept = (sum(answer["reason"] == "length" for answer in each) for each in (without, kept))
    print(f"{name}: {cut_without} of {CUT} cut with nothing kept, {cut_kept} with {RESERVE} tokens")
    assert cut_without > CUT // 4
    for answer in kept:
        assert answer["reason"] == "stop", vocabulary.decode(answer["ids"])
        for call in parse_completion(answer["ids"], vocabulary).tool_calls:
            jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
