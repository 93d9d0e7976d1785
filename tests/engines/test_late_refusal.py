"""A call goes on where LLGuidance fails in it: at a grammar that it reads late, or at a limit."""

import json
from typing import Any

import llguidance
import pytest

from constrained_k2 import Compiler, SchemaTooCostly, ToolCallSpec, Vocabulary
from constrained_k2.engines.llguidance.engine import LLGuidanceEngine
from constrained_k2.engines.llguidance.grammar import LLGuidanceGrammar
from constrained_k2.engines.llguidance.grammar_text import GrammarText
from constrained_k2.engines.llguidance.matcher import LLGuidanceMatcher
from constrained_k2.engines.llguidance.prototype import Prototype
from constrained_k2.engines.llguidance.refusal import Refused
from constrained_k2.formats.kimi_k3 import ARGUMENT, CLOSE, KIMI_K3, OPEN, SEPARATOR
from constrained_k2.vocabulary.bitmask import BitmaskRows, allocate_bitmask, allowed_ids
from tests.engines.masked_walks import write as accept
from tests.kit.grammars import mask_of

BYTES = Vocabulary.of_bytes()
UNREADABLE = '{"grammars": [{"lark_grammar": "start: MISSING"}]}'


def closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


EITHER = {"anyOf": [closed(k={"const": 1}), closed(l={"const": 2})]}
"""Its masks need LLGuidance, which reads the grammar there."""
TRIP: dict[str, Any] = closed(city={"type": "string"}, which=EITHER, days={"type": "integer"})
OPEN_TRIP = {"type": "object", "properties": TRIP["properties"]}
IN_ORDER, OTHER_ORDER = '{"city":"Rome","which":{"k":1},"days":3}', '{"days":3,"which":{"l":2},"city":"Rome"}'
EITHER_KIND = {"type": ["string", "integer"], "minLength": 1}  # masks within it need LLGuidance
UNEQUAL = closed(names={"type": "array", "items": EITHER_KIND, "uniqueItems": True})


@pytest.fixture
def engine() -> LLGuidanceEngine:
    return LLGuidanceEngine(BYTES, threads=2)


class Failing:
    """Makes LLGuidance fail at the grammars of the ``steps``; if ``raises``, their text cannot be written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps = {"exact", "narrow"}
        self.raises = False
        read = Prototype._new

        def new(prototype: Prototype) -> llguidance.LLMatcher:
            if step_of(prototype.source) not in self.steps:
                return read(prototype)
            if self.raises:
                raise Refused("the text cannot be written")
            return unreadable(prototype)

        monkeypatch.setattr(Prototype, "_new", new)

    def fail_now(self, matcher: LLGuidanceMatcher) -> None:
        """Have a matcher fail in the middle of its call, as do the grammars of the steps."""
        matcher._matcher = unreadable(matcher.grammar.prototype)


def step_of(source: GrammarText) -> str:
    """The kind of a grammar: the exact one of a schema, its narrow one, or that of any JSON."""
    if "#" in {use.pointer for use in source.coverage.relaxed}:
        return "any"
    return source.effort


def unreadable(prototype: Prototype) -> llguidance.LLMatcher:
    failed = llguidance.LLMatcher(prototype.tokenizer, UNREADABLE, log_level=0)
    assert failed.is_error()
    return failed


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Failing:
    return Failing(monkeypatch)


def write(matcher: LLGuidanceMatcher, text: str) -> str:
    """Write bytes, each with a mask; return the rest from the first one that is refused on."""
    for at, byte in enumerate(text.encode()):
        is_allowed = byte in mask_of(matcher, BYTES)
        assert matcher.accept(byte) == is_allowed, text[: at + 1]
        if not is_allowed:
            return text[at:]
    assert mask_of(matcher, BYTES)
    return ""


def compiled(engine: LLGuidanceEngine, schema: Any, undeclared_keys: Any = "allow") -> LLGuidanceGrammar:
    grammar = engine.compile(json.dumps(schema), undeclared_keys)
    assert (step_of(grammar.source), grammar.coverage.relaxed) == ("exact", ())
    return grammar


def check_repeated(matcher: LLGuidanceMatcher, refused: tuple[str, ...], rest: str) -> None:
    """Texts that repeat a key or an item are refused, also in a fork; the rest completes the call."""
    for each in (matcher, matcher.fork()):
        for repeated in refused:
            left = write(each, repeated)
            assert left and repeated.endswith(left)
            each.rollback(len(repeated) - len(left))
        assert write(each, rest) == "" and each.is_complete()


@pytest.mark.parametrize("raises", [False, True])
def test_any_object_goes_on_in_the_middle_of_this_call_alone(
    engine: LLGuidanceEngine, failing: Failing, caplog: pytest.LogCaptureFixture, *, raises: bool
) -> None:
    failing.raises = raises
    grammar = compiled(engine, TRIP)
    for text in (IN_ORDER, IN_ORDER.replace(":1", ":2"), OTHER_ORDER, OTHER_ORDER):
        matcher = grammar.matcher("tools[name='trip']", may_relax=True)
        assert matcher.grammar is grammar and write(matcher, text[:5]) == "" and matcher.grammar is grammar
        assert write(matcher, text[5:]) == "" and matcher.is_complete()
        assert step_of(matcher.grammar.source) == "any"
        assert [use.pointer for use in matcher.grammar.coverage.relaxed] == ["#"]
    (line,) = [record.getMessage() for record in caplog.records]
    assert "tools[name='trip']: LLGuidance failed" in line and "any JSON: " in line
    assert grammar.coverage.is_sound
    assert write(grammar.matcher("schema", may_relax=True), "[") == "["


@pytest.mark.parametrize("may_relax", [False, True])
def test_the_narrow_grammar_comes_first(engine: LLGuidanceEngine, failing: Failing, *, may_relax: bool) -> None:
    failing.steps = {"exact"}
    matcher = compiled(engine, TRIP).matcher("schema", may_relax=may_relax)
    assert write(matcher, OTHER_ORDER) == "" and matcher.is_complete()
    assert step_of(matcher.grammar.source) == "narrow"
    matcher.rollback(len('"l":2},"city":"Rome"}'))
    assert write(matcher, '"k":2') == "2"


@pytest.mark.usefixtures("failing")
def test_a_strict_call_ends_where_nothing_takes_its_text(engine: LLGuidanceEngine) -> None:
    matcher = compiled(engine, TRIP).matcher("schema")
    for rest in (OTHER_ORDER, "", ""):
        with pytest.raises(SchemaTooCostly, match=r'schema: .*unknown name: "MISSING"'):
            write(matcher, rest)
    assert step_of(matcher.grammar.source) == "exact"
    matcher.rollback(len('"which"'))
    assert write(matcher, '"city":"Rome"') == ""  # no mask of it needs LLGuidance


@pytest.mark.parametrize("strict", [None, True, False])
def test_calls_of_tools_that_their_shape_admits(failing: Failing, *, strict: bool | None) -> None:
    failing.steps = set()
    function = {"name": "trip", "parameters": TRIP} | ({} if strict is None else {"strict": strict})
    compiled = Compiler(BYTES).compile(ToolCallSpec.from_openai({"tools": [{"function": function}]}), check=False)
    compiled.admit()
    assert compiled.fast_path_count == 1
    failing.steps = {"exact", "narrow"}
    other = compiled.arguments("trip")
    assert isinstance(other, LLGuidanceMatcher)
    if strict:
        with pytest.raises(SchemaTooCostly, match="trip"):
            write(other, OTHER_ORDER)
    else:
        assert write(other, OTHER_ORDER) == "" and other.is_complete()
    assert compiled.coverage("trip").is_sound  # that of the grammar that calls begin with


def test_a_call_goes_on_from_its_start(engine: LLGuidanceEngine, failing: Failing) -> None:
    matcher = compiled(engine, TRIP).matcher("schema", may_relax=True)
    failing.fail_now(matcher)
    matcher.rollback(0)
    assert write(matcher, '{"city":"","which":{"k":1}') == ""
    assert step_of(matcher.grammar.source) == "any"
    matcher.rollback(len('{"city":"","which":{"k":1}'))
    assert write(matcher, IN_ORDER) == "" and matcher.is_complete()


@pytest.mark.usefixtures("failing")
def test_forks_and_rollbacks_after_the_switch(engine: LLGuidanceEngine) -> None:
    matcher = compiled(engine, TRIP).matcher("schema", may_relax=True)
    before = matcher.fork()
    assert write(matcher, '{"city":"Rome","which":') == ""
    fork = matcher.fork()
    assert step_of(fork.grammar.source) == step_of(matcher.grammar.source) == "any"
    assert write(fork, '{"l":2},"days":4}') == "" and fork.is_complete()
    matcher.rollback(len('"Rome","which":'))
    assert write(matcher, IN_ORDER[len('{"city":') :]) == "" and matcher.is_complete()
    assert step_of(before.grammar.source) == "exact"


@pytest.mark.usefixtures("failing")
def test_no_key_comes_twice_after_the_switch(engine: LLGuidanceEngine) -> None:
    matcher = compiled(engine, OPEN_TRIP).matcher("schema", may_relax=True)
    assert write(matcher, '{"city":"Rome","which":{"k":1},"more":1') == ""
    assert step_of(matcher.grammar.source) == "any"
    check_repeated(matcher, (',"more"', ',"\\u006dore"', ',"city"'), ',"mores":2}')


def test_no_item_comes_twice_after_the_switch(engine: LLGuidanceEngine, failing: Failing) -> None:
    failing.steps = set()
    matcher = compiled(engine, UNEQUAL).matcher("schema", may_relax=True)
    assert write(matcher, '{"names":["x","x"') == '"'
    failing.steps = {"exact", "narrow"}
    failing.fail_now(matcher)
    assert write(matcher, 'y",null,1.0,{},{}') == "" and step_of(matcher.grammar.source) == "any"
    check_repeated(matcher, (',"xy"', ',"x"', ",1.0]"), '],"more":[1,1]}')


def test_other_rows_of_a_batch_go_on(engine: LLGuidanceEngine, failing: Failing) -> None:
    """Two threads fill 90 rows; the grammar of two of three fails, and with one of these nothing goes on."""
    bad, good = compiled(engine, TRIP), compiled(engine, closed(which=EITHER))
    failing.steps = set()
    assert not good.copy().is_error()
    failing.steps = {"exact", "narrow"}
    matchers = [bad.matcher("schema", may_relax=True), bad.matcher("schema"), good.matcher("schema")]
    matchers += [matcher.fork() for _ in range(29) for matcher in matchers[:3]]
    for number, matcher in enumerate(matchers):
        assert all(map(matcher.accept, b'{"which"' if number % 3 == 2 else b'{"days":3,"which"'))
    bitmask = allocate_bitmask(90, BYTES.size)
    rows = BitmaskRows(bitmask, BYTES.size)
    failed = LLGuidanceMatcher.fill_batch([(one, row) for row, one in enumerate(matchers)], rows)
    assert sorted(row for row, _ in failed) == list(range(1, 90, 3))
    assert [step_of(one.grammar.source) for one in matchers[:3:2]] == ["any", "exact"]
    for row in {*range(90)} - {*range(1, 90, 3)}:
        assert {ord(" "), ord(":")} <= {*allowed_ids(bitmask[row])}
        assert matchers[row].accept(ord(":"))
        assert matchers[row].accept(ord("n")) == (row % 3 == 0)  # null


@pytest.mark.parametrize("raises", [False, True])
def test_drafts_alone_are_no_reason_to_leave_the_grammar(
    engine: LLGuidanceEngine, failing: Failing, *, raises: bool
) -> None:
    failing.raises = raises
    matcher = compiled(engine, closed(city={"type": "string"}, days={"type": "integer"})).matcher("schema")
    for part in ('{"c', 'ity":"Rome', '","', 'days":3', "}"):
        assert matcher.forced_tokens() == []
        assert write(matcher, part) == ""
    assert matcher.is_complete() and step_of(matcher.grammar.source) == "exact"


def test_other_calls_do_not_learn_where_any_value_may_end(engine: LLGuidanceEngine, failing: Failing) -> None:
    failing.steps = set()
    grammar = engine.compile('{"enum":[12,"a"]}')
    first, other = grammar.matcher("schema", may_relax=True), grammar.matcher("schema")
    assert first.accept(ord("1")) and other.accept(ord("1"))
    failing.steps = {"exact", "narrow"}
    failing.fail_now(first)
    assert first.is_complete() and step_of(first.grammar.source) == "any"
    failing.steps = set()
    assert not other.is_complete()


@pytest.mark.parametrize("may_relax", [False, True])
def test_arguments_as_xml(failing: Failing, *, may_relax: bool) -> None:
    failing.steps = set()
    vocabulary, end = Vocabulary.of_bytes(KIMI_K3), (CLOSE, ARGUMENT, SEPARATOR)
    schema = json.dumps(closed(n={"type": "integer"}, m={"type": "integer"}))
    matcher = LLGuidanceEngine(vocabulary, threads=1).compile(schema, encoding="xtml").matcher("", may_relax=may_relax)
    assert accept(matcher, vocabulary, OPEN, f'{ARGUMENT} key="n" type="number"', SEPARATOR, "1") == ""
    failing.steps = {"exact", "narrow"}
    failing.fail_now(matcher)
    matcher._consumed = 0
    if not may_relax:
        with pytest.raises(SchemaTooCostly):
            matcher.engine()
        return
    matcher.engine()
    assert step_of(matcher.grammar.source) == "any" and mask_of(matcher, vocabulary)
    assert accept(matcher, vocabulary, *end, OPEN, f'{ARGUMENT} key="o" type="string"', SEPARATOR, "x", *end) == ""
    assert matcher.is_complete()


@pytest.mark.parametrize("is_replaceable", [True, False])
def test_a_failed_matcher_does_not_say_for_others_that_arguments_are_incomplete(
    engine: LLGuidanceEngine, failing: Failing, *, is_replaceable: bool
) -> None:
    """LLGuidance's matcher answers no once it has failed, and calls at one position share the answer."""
    failing.steps = set()
    grammar = engine.compile('{"type":["object","null"],"properties":{"a":{"type":"null"}}}')
    failed, healthy = grammar.matcher("schema"), grammar.matcher("schema")
    for matcher in (failed, healthy):
        assert all(map(matcher.accept, b"{}"))
    assert failed._state is healthy._state, "they share no state, so this test shows nothing"
    failing.fail_now(failed)
    failing.steps = set() if is_replaceable else {"exact", "narrow"}
    if is_replaceable:
        assert failed.is_complete()
    else:
        with pytest.raises(SchemaTooCostly):
            failed.is_complete()
        failing.steps = set()
    assert healthy.is_complete()
