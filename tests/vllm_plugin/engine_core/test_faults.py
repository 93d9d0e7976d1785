"""Whatever fails in one request, no row that vLLM applies is empty, and the other requests notice nothing."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.sampling_params import StructuredOutputsParams

from constrained_k2 import Compiler, ToolCallMatcher, ToolCallSpec, Vocabulary
from constrained_k2.engines.llguidance.matcher import LLGuidanceMatcher
from constrained_k2.vllm_plugin.engine_core import structured_output
from constrained_k2.vllm_plugin.shared.matcher_factory import MatcherFactory, PromptInfo
from constrained_k2.vllm_plugin.shared.settings import Settings
from constrained_k2.vocabulary.bitmask import allowed_ids
from tests.kit.tools import tool
from tests.kit.walks import ids_of
from tests.vllm_plugin.faults import ERRORS, STEPS, Fault
from tests.vllm_plugin.masks import allowed_by, grammar_of
from tests.vllm_plugin.scheduling import ScriptedEngine, admitted, config_of, drafter

pytestmark = pytest.mark.usefixtures("masks_by_llguidance")  # faults are injected there
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 2}
GRAMMAR = {"method": "custom_class", "model": "constrained_k2.vllm_plugin.GrammarProposer", "num_speculative_tokens": 4}
ARMS: dict[str, tuple[Any, bool]] = {  # speculative decoding, and whether scheduling is asynchronous
    "no drafts": (None, False),
    "no drafts, asynchronous": (None, True),
    "ngram": (NGRAM, False),
    "ngram, asynchronous": (NGRAM, True),
    "grammar": (GRAMMAR, False),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "llguidance": {},
    "llguidance, cached": {},
    "xgrammar": {"engines": ["xgrammar"]},
}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "days", "unit"],
    "additionalProperties": False,
}
LENGTH = 50


class WatchedEngine(ScriptedEngine):
    """Looks at every row; a request whose script is forbidden takes a token that its row allows."""

    def _rows_of(self, scheduled: Any, masks: Any) -> Any:
        rows = super()._rows_of(scheduled, masks)
        assert all(row.any() for rows_of_one in rows.values() for row in rows_of_one), "an empty row"
        return rows

    def choose(self, name: str, at: int, token: int, row: np.ndarray) -> int:
        if name != "victim":
            return super().choose(name, at, token, row)
        return token if row[token >> 5] >> (token & 31) & 1 else int(allowed_ids(row)[0])


def body(name: str, choice: str = "required") -> dict[str, Any]:
    return {"tools": [tool(each, PARAMETERS) for each in (name, name + "_2")], "tool_choice": choice}


def requests(vocabulary: Vocabulary) -> dict[str, tuple[SamplingParams, list[int]]]:
    """By name, each with its prompt: the victim has every limit, and begins in reasoning."""
    think = [1, vocabulary.format.think_begin]
    limits = {"thinking_token_budget": 6, "bad_words": [[5], [6, 7]]}
    victim = admitted(vocabulary, body("victim") | {"thinking": True}, max_tokens=LENGTH)
    victim.extra_args |= {"constrained_k2_finish_reserve": 45, "constrained_k2_token_limits": limits}
    free = admitted(vocabulary, body("text", "auto"), max_tokens=LENGTH)
    reserved = admitted(vocabulary, body("reserved"), max_tokens=LENGTH)
    reserved.extra_args |= {"constrained_k2_finish_reserve": 40}
    return {"free": (free, [1]), "victim": (victim, think), "reserved": (reserved, [1])}


def script(factory: MatcherFactory, params: SamplingParams, prompt: list[int], seed: int) -> list[int]:
    """A random turn under the parameters' masks, to its stop or its last token."""
    compiled = factory.compile(params)
    assert compiled is not None
    matcher, chance = factory.matcher(compiled, PromptInfo(len(prompt), prompt[-1:]), params), random.Random(seed)
    markers = factory.vocabulary.format
    while not matcher.is_terminated() and matcher.num_tokens < LENGTH:
        allowed = ids_of(matcher)
        likely = [token for token in (markers.section_begin, markers.turn_end) if token in allowed]
        token = likely[0] if likely and chance.random() < 0.2 else chance.choice(allowed)
        assert matcher.accept_tokens([token])
    return list(matcher.token_ids())


class Arm:
    """One way to run the requests, and what comes of it without a fault."""

    def __init__(self, model: Path, vocabulary: Vocabulary, settings: str, arm: str) -> None:
        speculative, self.asynchronous = ARMS[arm]
        given = {"route": "structured_output"} | SETTINGS[settings]
        self.config: VllmConfig = config_of(
            model, speculative_config=speculative, additional_config={"constrained_k2": given}
        )
        self.vocabulary = vocabulary
        self.drafts = speculative is NGRAM
        with pytest.MonkeyPatch.context() as patch:
            if settings == "llguidance":
                patch.setattr(Settings, "mask_bytes", 0)
            self.factory: MatcherFactory = vars(structured_output)["MatcherFactory"](self.config)
        self.scripts = {
            name: script(self.factory, params, prompt, seed)
            for seed, (name, (params, prompt)) in enumerate(requests(vocabulary).items())
        }
        self.undisturbed = {mixed: self.run(mixed=mixed) for mixed in (False, True)}

    def run(self, fault: Fault | None = None, *, mixed: bool) -> WatchedEngine:
        """Run the requests; ``mixed``: beside one that vLLM constrains."""
        engine = WatchedEngine(self.config, asynchronous=self.asynchronous)
        scripts = dict(self.scripts)
        found: list[Any] = []
        for name, (params, prompt) in requests(self.vocabulary).items():
            request = engine.add(name, params, scripts[name], prompt)
            if name == "victim":
                compiling = request.structured_output_request._grammar
                found += [] if compiling.exception(timeout=60) else [compiling.result()]
        if mixed:
            params = admitted(self.vocabulary, structured_outputs=StructuredOutputsParams(regex="a{30}b"))
            assert params.structured_outputs is not None
            params.structured_outputs._backend = "xgrammar"  # as vLLM's validation leaves it
            text = self.vocabulary.encode("a") * 30 + self.vocabulary.encode("b")
            scripts["theirs"] = [*text, self.vocabulary.format.turn_end]
            engine.add("theirs", params, scripts["theirs"])

        def victim() -> ToolCallMatcher | None:
            return found[0].matcher if found else None

        with nullcontext() if fault is None else fault.in_request(victim):
            if self.drafts:
                engine.run(drafter(scripts, random.Random(5), self.vocabulary))
            else:
                engine.run()
        return engine


@pytest.fixture(scope="module")
def arm_of(model: Path, vocabulary: Vocabulary) -> Iterator[Callable[[str, str], Arm]]:
    """Makes an arm, once; its engines share a factory, since xgrammar's compiler takes two seconds to start."""
    with pytest.MonkeyPatch.context() as patch:
        made: dict[int, MatcherFactory] = {}

        def factory(config: VllmConfig) -> MatcherFactory:
            if id(config) not in made:
                made[id(config)] = MatcherFactory(config)
            return made[id(config)]

        patch.setattr(structured_output, "MatcherFactory", factory)
        yield cache(lambda settings, arm: Arm(model, vocabulary, settings, arm))


DRAFTED_ALL_THE_SAME = {("turn forced_tokens", "announced"), ("engine forced_tokens", "announced")}
"""Errors that a drafter catches; it then drafts nothing."""

STEPS_BESIDE = {"engine fill_batch"}
"""Each row is filled alone then."""


def check(tried: Arm, fault: Fault, *, mixed: bool) -> None:
    expected, got = tried.undisturbed[mixed], tried.run(fault, mixed=mixed)
    for name in got.scripts:
        if name == "victim" and got.reasons[name] == "error":
            continue
        assert got.reasons[name] == expected.reasons[name]
        length = len(got.scripts[name])  # the last drafts may run on behind the stop
        assert got.outputs[name][:length] == expected.outputs[name][:length]
        masked = [at for at in range(length) if at in expected.rows[name]]
        assert all(np.array_equal(got.rows[name][at], expected.rows[name][at]) for at in masked), name
    if fault.raised and fault.lasting and fault.step not in STEPS_BESIDE:
        assert got.reasons["victim"] == "error" or (fault.step, fault.error) in DRAFTED_ALL_THE_SAME
    if not fault.raised:
        assert got.reasons["victim"] != "error"


FAULTS = [(error, start, lasting) for start, lasting in ((0, True), (3, True), (2, False)) for error in ERRORS]


def try_every_step(tried: Arm, faults: Sequence[int]) -> None:
    raised = set()
    for number, step in enumerate(STEPS):
        for offset in faults:
            error, start, lasting = FAULTS[(number + offset) % len(FAULTS)]
            fault = Fault(step, error, start, lasting=lasting)
            check(tried, fault, mixed=(number + offset) % 4 == 0)
            raised |= {step} if fault.raised else set()
    assert len(raised) > 15, raised


@pytest.mark.parametrize("arm", ARMS)
def test_a_fault_ends_its_own_request(arm_of: Callable[[str, str], Arm], arm: str) -> None:
    """Or none, where the step is not needed."""
    try_every_step(arm_of("llguidance", arm), [0])


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("arm", ARMS)
def test_more_faults_on_each_engine(arm_of: Callable[[str, str], Arm], arm: str, settings: str) -> None:
    try_every_step(arm_of(settings, arm), [1, 3, 5, 8])


@pytest.mark.parametrize("arm", ARMS)
def test_a_mask_without_tokens_ends_its_own_request(
    arm_of: Callable[[str, str], Arm], vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch, arm: str
) -> None:
    """As xgrammar leaves it where its grammar has a dead end."""
    fill = LLGuidanceMatcher.fill
    tried = arm_of("llguidance", arm)

    def empty(self: LLGuidanceMatcher, row: np.ndarray, address: int = 0) -> None:
        fill(self, row, address)
        if "victim" in self._location:
            row.fill(0)

    monkeypatch.setattr(LLGuidanceMatcher, "fill", empty)
    got = tried.run(mixed=False)
    reasons = dict(tried.undisturbed[False].reasons) | {"victim": "error"}
    assert got.reasons == reasons
    at = tried.scripts["victim"].index(vocabulary.format.argument_begin) + 1
    assert allowed_ids(got.rows["victim"][at]).tolist() == [vocabulary.format.turn_end]


@pytest.mark.parametrize("error", ERRORS)
def test_a_failed_mask_is_an_error_where_a_stop_is_legal(vocabulary: Vocabulary, error: str) -> None:
    """An answer that may end here ends in an error all the same: the model might have continued it."""
    spec = {"tools": body("f", "auto")["tools"], "tool_choice": "auto",
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "integer"}}}}  # fmt: skip
    matcher = Compiler(vocabulary).compile(ToolCallSpec.from_openai(spec)).matcher()
    grammar, stop = grammar_of(matcher), vocabulary.format.turn_end
    assert grammar.accept_tokens("a", vocabulary.encode("1"))
    assert grammar.validate_tokens([stop]) == [stop]
    with Fault("engine fill", error, 0).in_request(lambda: matcher):
        assert allowed_by(grammar, vocabulary) == [stop]
    assert not grammar.accept_tokens("a", [stop])


@pytest.mark.parametrize("error", ERRORS)
def test_a_fault_behind_a_draft_that_is_not_taken_ends_nothing(vocabulary: Vocabulary, error: str) -> None:
    """Unless it is a mistake: then the matcher's state is lost."""
    matcher = Compiler(vocabulary).compile(ToolCallSpec.from_openai(body("f"))).matcher()
    grammar, markers = grammar_of(matcher), vocabulary.format
    header = [markers.section_begin, markers.call_begin, *vocabulary.encode("functions.f:0"), markers.argument_begin]
    assert grammar.accept_tokens("a", header)
    draft, other = vocabulary.encode('{"'), vocabulary.encode("{")
    assert grammar.accept_tokens("a", draft)
    with Fault("engine fill", error, 0).in_request(lambda: matcher):
        allowed_by(grammar, vocabulary)
    grammar.rollback(len(draft))
    assert grammar.accept_tokens("a", other) is (error == "announced")
    assert (allowed_by(grammar, vocabulary) == [markers.turn_end]) is (error != "announced")


@pytest.mark.parametrize("error", ERRORS)
def test_a_matcher_that_cannot_be_made_ends_its_own_request(
    arm_of: Callable[[str, str], Arm], monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    tried = arm_of("llguidance", "no drafts")
    made = MatcherFactory.matcher

    def failing(self: MatcherFactory, compiled: Any, prompt: PromptInfo, params: SamplingParams) -> ToolCallMatcher:
        if compiled.spec.tools[0].name == "victim":
            raised = ERRORS[error]()
            raise raised
        return made(self, compiled, prompt, params)

    monkeypatch.setattr(MatcherFactory, "matcher", failing)
    got = tried.run(mixed=False)
    assert got.reasons == dict(tried.undisturbed[False].reasons) | {"victim": "error"}
    assert not got.outputs["victim"]
