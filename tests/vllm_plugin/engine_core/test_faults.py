"""Whatever fails in one request, no row that vLLM applies is empty, and the other requests notice nothing."""

import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.sampling_params import StructuredOutputsParams

from constrained_k2 import Compiler, ToolCallMatcher, ToolCallSpec, Vocabulary
from constrained_k2.compiler.compiled import CompiledToolCalls
from constrained_k2.engines.llguidance.matcher import LLGuidanceMatcher
from constrained_k2.turn.finish_budget import FinishBudget
from constrained_k2.turn.thinking_budget import ThinkingBudget
from constrained_k2.turn.token_restriction import TokenRestriction
from constrained_k2.vllm_plugin.engine_core import structured_output
from constrained_k2.vllm_plugin.engine_core.grammar import ToolCallGrammar, fill_batch
from constrained_k2.vllm_plugin.shared.matcher_factory import MatcherFactory, PromptInfo
from constrained_k2.vllm_plugin.shared.settings import Settings
from constrained_k2.vocabulary.bitmask import allowed_ids, words_per_row
from tests.kit.budget import SEED
from tests.kit.tools import tool
from tests.kit.turns import call_start, matcher_of
from tests.kit.walks import ids_of, row_of
from tests.vllm_plugin.faults import ERRORS, STEPS, Fault
from tests.vllm_plugin.masks import allowed_by, grammar_of
from tests.vllm_plugin.scheduling import ScriptedEngine, admitted, config_of, drafter

by_llguidance = pytest.mark.usefixtures("masks_by_llguidance")  # faults are injected there
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 2}
GRAMMAR = {"method": "custom_class", "model": "constrained_k2.vllm_plugin.GrammarProposer", "num_speculative_tokens": 4}
ARMS: dict[str, tuple[Any, bool]] = {  # speculative decoding, and whether scheduling is asynchronous
    "no drafts": (None, False),
    "no drafts, asynchronous": (None, True),
    "ngram": (NGRAM, False),
    "ngram, asynchronous": (NGRAM, True),
    "grammar": (GRAMMAR, False),
}
SETTINGS: dict[str, Any] = {"llguidance": {}, "llguidance, cached": {}, "xgrammar": {"engines": ["xgrammar"]}}
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
            engine.run(drafter(scripts, random.Random(5), self.vocabulary) if self.drafts else lambda *_: [])
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


FAULTS = [(error, start, lasting) for start, lasting in ((0, True), (3, True), (None, False)) for error in ERRORS]
"""The error, the first call that raises (None: any of the first ten), and whether all later calls raise too."""


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize(
    ("settings", "faults"),
    [("llguidance", [0]), *(pytest.param(name, [1, 3, 5, 8], marks=pytest.mark.slow) for name in SETTINGS)],
)
@by_llguidance
def test_a_fault_ends_its_own_request(
    arm_of: Callable[[str, str], Arm], arm: str, settings: str, faults: list[int]
) -> None:
    """Or none, where the step is not needed."""
    tried, raised, chance = arm_of(settings, arm), set(), random.Random(SEED)
    for number, step in enumerate(STEPS):
        for offset in faults:
            error, start, lasting = FAULTS[(number + offset) % len(FAULTS)]
            fault = Fault(step, error, chance.randrange(10) if start is None else start, lasting=lasting)
            check(tried, fault, mixed=(number + offset) % 4 == 0)
            raised |= {step} if fault.raised else set()
    assert len(raised) > 15, raised


@by_llguidance
def test_a_fault_at_an_illegal_draft_leaves_no_mark(arm_of: Callable[[str, str], Arm]) -> None:
    """A mark that stayed refused the legal drafts of a later step, which then had no masks."""
    tried = arm_of("llguidance", "ngram, asynchronous")
    faults = [Fault("turn rollback", "announced", start, lasting=False) for start in range(10)]
    for fault in faults:
        check(tried, fault, mixed=False)
    assert all(fault.raised for fault in faults)


@pytest.mark.parametrize("arm", ARMS)
@by_llguidance
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
@by_llguidance
def test_a_failed_mask_is_an_error_where_a_stop_is_legal(vocabulary: Vocabulary, error: str) -> None:
    """An answer that may end here ends in an error all the same: the model might have continued it."""
    spec = {"tools": body("f", "auto")["tools"], "tool_choice": "auto",
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "integer"}}}}  # fmt: skip
    matcher = matcher_of(Compiler(vocabulary), spec)
    grammar, stop = grammar_of(matcher), vocabulary.format.turn_end
    assert grammar.accept_tokens("a", vocabulary.encode("1"))
    assert grammar.validate_tokens([stop]) == [stop]
    with Fault("engine fill", error, 0).in_request(lambda: matcher):
        assert allowed_by(grammar, vocabulary) == [stop]
    assert not grammar.accept_tokens("a", [stop])


@pytest.mark.parametrize("error", ERRORS)
@by_llguidance
def test_a_fault_behind_a_draft_that_is_not_taken_ends_nothing(vocabulary: Vocabulary, error: str) -> None:
    """Unless it is a mistake: then the matcher's state is lost."""
    matcher = matcher_of(Compiler(vocabulary), body("f"))
    grammar, markers = grammar_of(matcher), vocabulary.format
    assert grammar.accept_tokens("a", call_start(vocabulary))
    draft, other = vocabulary.encode('{"'), vocabulary.encode("{")
    assert grammar.accept_tokens("a", draft)
    with Fault("engine fill", error, 0).in_request(lambda: matcher):
        allowed_by(grammar, vocabulary)
    grammar.rollback(len(draft))
    assert grammar.accept_tokens("a", other) is (error == "announced")
    assert (allowed_by(grammar, vocabulary) == [markers.turn_end]) is (error != "announced")


@pytest.mark.parametrize("error", ERRORS)
@by_llguidance
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


# Any sequence of a scheduler's calls, with faults at random points: no row is empty, and others' rows stay right


LIMIT = 60
ENGINES: dict[str, dict[str, Any]] = {"llguidance": {"mask_cache_bytes": 0}, "cached": {}, "xgrammar": {}}


@pytest.fixture(scope="module")
def compiler_of(vocabulary: Vocabulary) -> Callable[[str], Compiler]:
    return cache(lambda name: Compiler(vocabulary, name.replace("cached", "llguidance"), **ENGINES[name]))


@cache
def budgets(vocabulary: Vocabulary) -> tuple[FinishBudget, ThinkingBudget]:
    return FinishBudget(vocabulary), ThinkingBudget(vocabulary)


class Turn:
    """A grammar under test, and the tokens that it has accepted; ``fresh`` compiles what it is compared with."""

    def __init__(self, compiler: Compiler, fresh: Compiler, *, limited: bool) -> None:
        self._limited = limited
        spec = ToolCallSpec.from_openai(body("victim" if limited else "other") | {"thinking": limited})
        self._fresh = fresh.compile(spec)
        self.ids: list[int] = []
        self.grammar = grammar_of(self._matcher(compiler.compile(spec)))
        self.is_over = False

    def _matcher(self, compiled: CompiledToolCalls) -> ToolCallMatcher:
        matcher = compiled.matcher(in_reasoning=self._limited)
        if self._limited:
            finish_budget, thinking_budget = budgets(matcher.vocabulary)
            finish_budget.apply(matcher, LIMIT, 50)
            thinking_budget.apply(matcher, 5)
            matcher.limits = TokenRestriction(matcher.vocabulary.size, None, [[5], [6, 7]], lambda: None)
        return matcher

    def expected(self, drafts: list[int]) -> np.ndarray:
        """The mask of a matcher that nothing but the tokens has happened to."""
        matcher = self._matcher(self._fresh)
        assert matcher.accept_tokens([*self.ids, *drafts])
        return row_of(matcher)


@pytest.mark.slow
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(
    engine=st.sampled_from(sorted(ENGINES)),
    seed=st.integers(0, 2**32),
    fault=st.builds(
        Fault, st.sampled_from([*STEPS]), st.sampled_from([*ERRORS]), st.integers(0, 9), lasting=st.booleans()
    ),
    with_drafts=st.lists(st.booleans(), min_size=1, max_size=30),
)
def test_no_row_is_empty_and_no_other_row_changes(
    compiler_of: Callable[[str], Compiler], engine: str, seed: int, fault: Fault, with_drafts: list[bool]
) -> None:
    compiler, fresh = compiler_of(engine), compiler_of(engine.replace("cached", "llguidance"))
    turns = [Turn(compiler, fresh, limited=limited) for limited in (True, False)]
    scheduler = Scheduler(turns, fault, random.Random(seed))
    victim, other = scheduler.turns
    with fault.in_request(lambda: victim.grammar.matcher):
        for drafting in with_drafts:
            scheduler.step(drafting=drafting)
    assert other.grammar.matcher is not None


class Scheduler:
    """Calls grammars in the order in which vLLM's scheduler does; of its two turns, the first one has the fault."""

    def __init__(self, turns: list[Turn], fault: Fault, chance: random.Random) -> None:
        self.turns, self._fault, self._chance = turns, fault, chance
        vocabulary = turns[0].grammar._drafter._matcher.vocabulary
        self._size, self._stops, self._stop = vocabulary.size, vocabulary.format.stop_ids, vocabulary.format.turn_end
        self._bitmask = torch.zeros((8, words_per_row(self._size)), dtype=torch.int32)

    def step(self, *, drafting: bool) -> None:
        """Drafts or none, masks, and what is sampled from them."""
        rubbish = bytearray(self._chance.randbytes(self._bitmask.nbytes))  # of an earlier step
        self._bitmask.copy_(torch.frombuffer(rubbish, dtype=torch.int32).view_as(self._bitmask))
        running = [turn for turn in self.turns if not turn.is_over]
        drafts = [self._propose(turn.grammar) if drafting else [] for turn in running]
        if drafting:
            rows = [self._masks(turn.grammar, ids) for turn, ids in zip(running, drafts, strict=True)]
        else:
            fill_batch([turn.grammar for turn in running], self._bitmask)
            rows = [[row.numpy().copy()] for row in self._bitmask[: len(running)]]
        for turn, ids, masks in zip(running, drafts, rows, strict=True):
            self._sample(turn, ids, masks)

    def _propose(self, grammar: ToolCallGrammar) -> list[int]:
        """Drafts that the scheduler has checked: the grammar's, or some model's."""
        if self._chance.random() < 0.5:
            return grammar.draft(4)
        return grammar.validate_tokens([self._chance.randrange(self._size) for _ in range(3)])

    def _masks(self, grammar: ToolCallGrammar, drafts: list[int]) -> list[np.ndarray]:
        """A row for each draft and one more."""
        bitmask, taken, refused = self._bitmask, 0, False
        for at in range(len(drafts) + 1):
            if refused:
                bitmask[at].copy_(bitmask[at - 1])
                continue
            grammar.fill_bitmask(bitmask, at)
            if at < len(drafts):
                refused = not grammar.accept_tokens("", [drafts[at]])
                taken += not refused
        if taken:
            grammar.rollback(taken)
        return [row.numpy().copy() for row in bitmask[: len(drafts) + 1]]

    def _sample(self, turn: Turn, drafts: list[int], rows: list[np.ndarray]) -> None:
        """Take drafts that their rows allow, and one token more; check the rows, as far as they are used."""
        is_victim, is_right, sampled = turn is self.turns[0], True, list[int]()
        assert all(row.any() for row in rows)
        for row, draft in zip_longest(rows, drafts):
            self._fault.is_paused = True
            is_right = np.array_equal(row, turn.expected(sampled))
            self._fault.is_paused = False
            if not is_right or draft is None or not row[draft >> 5] >> (draft & 31) & 1 or self._chance.random() < 0.2:
                sampled.append(int(self._chance.choice(allowed_ids(row))))
                break
            sampled.append(draft)
            if draft in self._stops:
                break
        accepted = turn.grammar.accept_tokens("", sampled)
        assert (accepted and is_right) or (is_victim and self._fault.raised)
        assert is_right or drafts or allowed_ids(row).tolist() == [self._stop]  # behind drafts vLLM copies rows
        assert is_right or not accepted, "the request goes on although a mask has failed"
        turn.ids += sampled
        turn.is_over = not accepted or sampled[-1] in self._stops or len(turn.ids) >= LIMIT
