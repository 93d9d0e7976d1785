"""A call goes on as any value where LLGuidance fails in it: it meets its limits only with the text that comes."""

import json
from typing import Any

import llguidance
import pytest

from constrained_k2 import Compiler, SchemaTooCostly, ToolCallSpec, Vocabulary
from constrained_k2.engines.llguidance import engine as llguidance_engine
from constrained_k2.engines.llguidance.distinct_matcher import DistinctMatcher
from constrained_k2.engines.llguidance.engine import LLGuidanceEngine, LLGuidanceGrammar
from constrained_k2.engines.llguidance.matcher import LLGuidanceMatcher
from constrained_k2.formats.kimi_k3 import ARGUMENT, CLOSE, KIMI_K3, OPEN, SEPARATOR
from constrained_k2.vocabulary.bitmask import BitmaskRows, allocate_bitmask, allowed_ids
from tests.engines.masked_walks import write as accept

UNREADABLE = '{"grammars": [{"lark_grammar": "start: MISSING"}]}'


def closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


EITHER = {"anyOf": [closed(k={"const": 1}), closed(l={"const": 2})]}
"""Its masks need LLGuidance, which reads the grammar there."""
TRIP: dict[str, Any] = closed(city={"type": "string"}, which=EITHER, days={"type": "integer"})
OPEN_TRIP = {"type": "object", "properties": TRIP["properties"]}
TEXT = '{"days":3,"which":{"l":2},"city":"Rome"}'
UNEQUAL = closed(names={"type": "array", "items": {"type": ["string", "integer"]}, "uniqueItems": True})


@pytest.fixture
def vocabulary() -> Vocabulary:
    return Vocabulary.of_bytes()


@pytest.fixture
def engine(vocabulary: Vocabulary) -> LLGuidanceEngine:
    return LLGuidanceEngine(vocabulary, threads=2)


class Failing:
    """Makes LLGuidance fail at the grammars of schemas, but not at that of any value, while it is switched on."""

    is_on = False

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        read = LLGuidanceGrammar._new

        def new(grammar: LLGuidanceGrammar, *limits: Any) -> llguidance.LLMatcher:
            if not self.is_on or "#" in {use.pointer for use in grammar.coverage.relaxed}:
                return read(grammar, *limits)
            return unreadable(grammar)

        monkeypatch.setattr(LLGuidanceGrammar, "_new", new)


def unreadable(grammar: LLGuidanceGrammar) -> llguidance.LLMatcher:
    failed = llguidance.LLMatcher(grammar._tokenizer, UNREADABLE, log_level=0)
    assert failed.is_error()
    return failed


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Failing:
    return Failing(monkeypatch)


def write(matcher: LLGuidanceMatcher, text: str) -> str:
    """Write bytes, each with a mask; return the rest from the first one that is refused on."""
    row = allocate_bitmask(1, len(matcher.grammar.token_classes))[0]
    for at, byte in enumerate(text.encode()):
        matcher.fill(row)
        is_allowed = byte in allowed_ids(row)
        assert matcher.accept(byte) == is_allowed, text[: at + 1]
        if not is_allowed:
            return text[at:]
    matcher.fill(row)
    return ""


def compiled(engine: LLGuidanceEngine, schema: Any, undeclared_keys: Any = "allow") -> LLGuidanceGrammar:
    grammar = engine.compile(json.dumps(schema), undeclared_keys)
    assert not grammar.allows_any_value and not grammar.coverage.relaxed
    return grammar


def test_any_object_goes_on_in_the_middle(engine: LLGuidanceEngine, failing: Failing) -> None:
    failing.is_on = True
    grammar = compiled(engine, TRIP)
    matcher = grammar.matcher("schema", may_relax=True)
    assert write(matcher, '{"city":"Rome"') == ""
    assert matcher.grammar is grammar  # no mask of it needs LLGuidance
    assert write(matcher, ',"which":{"k":2},"x":[]}') == "" and matcher.is_complete()
    assert matcher.grammar.allows_any_value
    assert [use.pointer for use in matcher.grammar.coverage.relaxed] == ["#"]
    assert grammar.coverage.is_sound and grammar.matcher("schema").grammar is grammar  # for other calls
    assert write(grammar.matcher("schema", may_relax=True), "[") == "["


def test_a_strict_call_ends(engine: LLGuidanceEngine, failing: Failing) -> None:
    failing.is_on = True
    grammar = compiled(engine, TRIP)
    matcher = grammar.matcher("schema")
    for rest in (TEXT, "", ""):
        with pytest.raises(SchemaTooCostly, match=r'schema: .*unknown name: "MISSING"'):
            write(matcher, rest)
    assert matcher.grammar is grammar
    matcher.rollback(len('"which"'))
    assert write(matcher, '"city":"Rome"') == ""


@pytest.mark.parametrize("strict", [None, True, False])
def test_calls_of_tools_that_their_shape_admits(
    vocabulary: Vocabulary, failing: Failing, *, strict: bool | None
) -> None:
    function = {"name": "trip", "parameters": TRIP} | ({} if strict is None else {"strict": strict})
    compiled = Compiler(vocabulary).compile(ToolCallSpec.from_openai({"tools": [{"function": function}]}), check=False)
    compiled.admit()
    assert compiled.plain_count == 1
    failing.is_on = True
    matcher = compiled.arguments("trip")
    assert isinstance(matcher, LLGuidanceMatcher)
    if strict:
        with pytest.raises(SchemaTooCostly, match="trip"):
            write(matcher, TEXT)
    else:
        assert write(matcher, TEXT) == "" and matcher.is_complete()
    assert compiled.coverage("trip").is_sound  # that of the grammar that calls begin with


def test_the_builtin_grammar_goes_on_too(engine: LLGuidanceEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    read = LLGuidanceGrammar._new

    def new(grammar: LLGuidanceGrammar, *limits: Any) -> llguidance.LLMatcher:
        is_ours = not (grammar.coverage.builtin or grammar.coverage.relaxed)
        return unreadable(grammar) if is_ours else read(grammar, *limits)

    monkeypatch.setattr(LLGuidanceGrammar, "_new", new)
    grammar = engine.compile(json.dumps(closed(n={"type": "string", "maxLength": 9})))
    assert grammar.coverage.builtin
    matcher = grammar.matcher("schema", may_relax=True)
    assert write(matcher, '{"n":') == ""
    monkeypatch.setattr(LLGuidanceGrammar, "renew", unreadable)
    matcher._matcher = unreadable(grammar)
    assert write(matcher, "99}") == "" and matcher.is_complete()
    assert matcher.grammar.allows_any_value


def test_forks_and_rollbacks_after_the_switch(engine: LLGuidanceEngine, failing: Failing) -> None:
    failing.is_on = True
    matcher = compiled(engine, TRIP).matcher("schema", may_relax=True)
    before = matcher.fork()
    assert write(matcher, '{"city":"Rome","which":') == ""
    fork = matcher.fork()
    assert fork.grammar is matcher.grammar and matcher.grammar.allows_any_value
    assert write(fork, '{"l":2},"days":4}') == "" and fork.is_complete()
    matcher.rollback(len('"Rome","which":'))
    assert write(matcher, TEXT[len('{"city":') :].replace("city", "town")) == "" and matcher.is_complete()
    assert not before.grammar.allows_any_value


def test_it_is_logged_once(engine: LLGuidanceEngine, failing: Failing, caplog: pytest.LogCaptureFixture) -> None:
    failing.is_on = True
    grammar = compiled(engine, TRIP)
    for _ in range(3):
        assert write(grammar.matcher("tools[name='trip']", may_relax=True), TEXT) == ""
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("tools[name='trip']: LLGuidance failed") and "any JSON value: " in line


def test_no_key_comes_twice_after_the_switch(engine: LLGuidanceEngine, failing: Failing) -> None:
    failing.is_on = True
    matcher = compiled(engine, OPEN_TRIP).matcher("schema", may_relax=True)
    assert isinstance(matcher, DistinctMatcher)
    assert write(matcher, '{"city":"Rome","which":{"k":1},"more":1') == ""
    assert matcher.grammar.allows_any_value
    for each in (matcher, matcher.fork()):
        for repeated in (',"more"', ',"\\u006dore"', ',"city"'):
            rest = write(each, repeated)
            assert rest and repeated.endswith(rest)
            each.rollback(len(repeated) - len(rest))
        assert write(each, ',"mores":2}') == "" and each.is_complete()


def test_no_item_comes_twice_after_the_switch(engine: LLGuidanceEngine, failing: Failing) -> None:
    grammar = compiled(engine, UNEQUAL)
    matcher = grammar.matcher("schema", may_relax=True)
    assert isinstance(matcher, DistinctMatcher)
    begun = '{"names":["x","'
    assert write(matcher, begun + 'x"') == '"'
    failing.is_on = True
    matcher._matcher = unreadable(grammar)
    assert write(matcher, 'y",null,1.0,{},{}') == "" and matcher.grammar.allows_any_value
    for each in (matcher, matcher.fork()):
        for repeated in (',"xy"', ',"x"', ",1.0]"):
            rest = write(each, repeated)
            assert rest and repeated.endswith(rest)
            each.rollback(len(repeated) - len(rest))
        assert write(each, '],"more":[1,1]}') == "" and each.is_complete()


def test_other_rows_of_a_batch_go_on(engine: LLGuidanceEngine, failing: Failing, vocabulary: Vocabulary) -> None:
    """Two threads fill 90 rows; the grammar of two of three fails, and one of these is strict."""
    failing.is_on = True
    bad, good = compiled(engine, TRIP), compiled(engine, closed(which=EITHER))
    failing.is_on = False
    assert not good.copy().is_error()
    failing.is_on = True
    matchers = [bad.matcher("schema", may_relax=True), bad.matcher("schema"), good.matcher("schema")]
    matchers += [matcher.fork() for _ in range(29) for matcher in matchers[:3]]
    for number, matcher in enumerate(matchers):
        text = b'{"which"' if number % 3 == 2 else b'{"days":3,"which"'
        assert all(map(matcher.accept, text))
    bitmask = allocate_bitmask(90, vocabulary.size)
    rows = BitmaskRows(bitmask, vocabulary.size)
    failed = LLGuidanceMatcher.fill_batch([(one, row) for row, one in enumerate(matchers)], rows)
    assert sorted(row for row, _ in failed) == list(range(1, 90, 3))
    assert [one.grammar.allows_any_value for one in matchers[:3:2]] == [True, False]
    for row in {*range(90)} - {*range(1, 90, 3)}:
        assert {ord(" "), ord(":")} <= {*allowed_ids(bitmask[row])}
        assert matchers[row].accept(ord(":"))
        assert matchers[row].accept(ord("n")) == (row % 3 == 0)  # null


def test_drafts_alone_are_no_reason_to_leave_the_grammar(engine: LLGuidanceEngine, failing: Failing) -> None:
    failing.is_on = True
    grammar = compiled(engine, closed(city={"type": "string"}, days={"type": "integer"}))
    matcher = grammar.matcher("schema", may_relax=True)
    for part in ('{"c', 'ity":"Rome', '","', 'days":3', "}"):
        assert matcher.forced_tokens() == []
        assert write(matcher, part) == ""
    assert matcher.is_complete() and matcher.grammar is grammar


def test_other_calls_do_not_learn_where_any_value_may_end(engine: LLGuidanceEngine, failing: Failing) -> None:
    grammar = engine.compile('{"enum":[12,"a"]}')
    first, other = grammar.matcher("schema", may_relax=True), grammar.matcher("schema")
    assert first.accept(ord("1")) and other.accept(ord("1"))
    failing.is_on = True
    first._matcher = unreadable(grammar)
    assert first.is_complete() and first.grammar.allows_any_value
    failing.is_on = False
    assert not other.is_complete()


@pytest.mark.parametrize("may_relax", [False, True])
def test_arguments_as_xml(failing: Failing, *, may_relax: bool) -> None:
    vocabulary = Vocabulary.of_bytes(KIMI_K3)
    engine = LLGuidanceEngine(vocabulary, threads=1)
    grammar = engine.compile(json.dumps(closed(n={"type": "integer"}, m={"type": "integer"})), encoding="xtml")
    matcher = grammar.matcher("schema", may_relax=may_relax)
    end = (CLOSE, ARGUMENT, SEPARATOR)
    assert accept(matcher, vocabulary, OPEN, f'{ARGUMENT} key="n" type="number"', SEPARATOR, "1") == ""
    failing.is_on = True
    matcher._matcher = unreadable(grammar)
    matcher._consumed = 0
    row = allocate_bitmask(1, vocabulary.size)[0]
    if not may_relax:
        with pytest.raises(SchemaTooCostly):
            matcher.engine()
        return
    matcher.engine()
    assert matcher.grammar.allows_any_value
    matcher.fill(row)
    assert accept(matcher, vocabulary, *end, OPEN, f'{ARGUMENT} key="o" type="string"', SEPARATOR, "x", *end) == ""
    assert matcher.is_complete()


# The first two schemas of MaskBench that LLGuidance's own limits take and then fail on.
WORDS = {"type": "string", "minLength": 1, "maxLength": 5000, "pattern": "^$|(^(?:\\S+\\s+){0,99}\\S+$)"}
ROLES = {
    "type": "string",
    "oneOf": [{"pattern": role} for role in ("customer", "maker", "operator", "admin", "designer")],
}


def written(vocabulary: Vocabulary, schema: Any, value: str, *, may_relax: bool = True) -> tuple[bool, bool]:
    """True if a value is accepted with a mask before each token; and if any value went on."""
    grammar = LLGuidanceEngine(vocabulary).compile(json.dumps({"properties": {"a": schema}, "type": "object"}))
    matcher, row = grammar.matcher("schema", may_relax=may_relax), allocate_bitmask(1, vocabulary.size)[0]
    for token_id in vocabulary.encode(json.dumps({"a": value}, separators=(",", ":"))):
        matcher.fill(row)
        if not row[token_id >> 5] >> (token_id & 31) & 1:
            return False, matcher.grammar.allows_any_value
        assert matcher.accept(token_id)
    return matcher.is_complete(), matcher.grammar.allows_any_value


@pytest.mark.slow
@pytest.mark.parametrize(("schema", "value"), [(WORDS, "two words"), (ROLES, "the maker"), (ROLES, "maker, admin")])
def test_limits_of_llguidance_itself(
    real_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch, schema: Any, value: str
) -> None:
    for limits in ("LIMITS", "PATIENT_LIMITS"):
        monkeypatch.setattr(llguidance_engine, limits, llguidance.LLParserLimits(step_lexer_fuel=200_000))
    assert written(real_vocabulary, schema, value) == (True, True)
    with pytest.raises(SchemaTooCostly, match="too many expressions"):
        written(real_vocabulary, schema, value, may_relax=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "is_valid"), [("two words", True), ("x " * 98 + "x", True), ("x " * 100 + "x", False), ("", False)]
)
def test_a_new_lexer_may_do_more(real_vocabulary: Vocabulary, value: str, is_valid: bool) -> None:
    assert written(real_vocabulary, WORDS, value, may_relax=False) == (is_valid, False)


@pytest.mark.slow
@pytest.mark.parametrize(("value", "is_valid"), [("the maker", True), ("maker, admin", False)])
def test_so_may_one_of_many_patterns(real_vocabulary: Vocabulary, value: str, is_valid: bool) -> None:
    assert written(real_vocabulary, ROLES, value, may_relax=False) == (is_valid, False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "is_costly"),
    [
        (r"^(?!.*://)((.{1,63}\.){1,127}[a-z]+)$", True),  # fails with the first mask in the string
        (r"^(([^.]{1,63}\.){1,127}[a-z]+)$", False),
    ],
)
def test_a_pattern_that_fails_with_the_first_mask_is_relaxed_when_it_is_compiled(
    real_vocabulary: Vocabulary, pattern: str, is_costly: bool
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}
    relaxed = LLGuidanceEngine(real_vocabulary).compile(json.dumps(schema)).coverage.relaxed
    assert [use.pointer for use in relaxed] == ["#/properties/a/pattern"] * is_costly
    assert all("costs the engine too much" in use.reason for use in relaxed)
    assert written(real_vocabulary, {"type": "string", "pattern": pattern}, "www.example.com") == (True, False)


@pytest.mark.slow
@pytest.mark.parametrize("beside", [{"not": {"pattern": "^a|b$"}}, {"pattern": "m$", "not": {"pattern": "[0-9]{3}"}}])
@pytest.mark.parametrize("name", ["hostname", "idn-hostname", "email", "idn-email", "uri", "iri"])
def test_so_is_a_pattern_beside_a_format(real_vocabulary: Vocabulary, name: str, beside: dict[str, Any]) -> None:
    texts = {"email": "me@example.com", "uri": "http://example.com", "hostname": "example.com"}
    text = texts[name.replace("idn-", "").replace("ir", "ur")]
    assert written(real_vocabulary, {"type": "string", "format": name} | beside, text) == (True, False)
