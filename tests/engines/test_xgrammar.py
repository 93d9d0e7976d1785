"""The xgrammar engine: its masks, its state, and its coverage: if nothing is relaxed, only valid JSON is accepted.

Its worker process keeps hostile schemas within limits, and ends with its parent.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from random import Random
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from constrained_k2 import (
    Compiler,
    InvalidRequest,
    SchemaTooCostly,
    ToolCallSpec,
    UnsupportedSchema,
    Vocabulary,
    parse_completion,
)
from constrained_k2.engines.xgrammar import worker as xgrammar_worker
from constrained_k2.engines.xgrammar.engine import XGrammarEngine
from tests.kit.budget import tries
from tests.kit.compilers import byte_compiler
from tests.kit.format_oracles import FORMAT_CHECKER
from tests.kit.grammars import accepts as accepts_value
from tests.kit.grammars import compile_schema, mask_of, request_of, takes
from tests.kit.grammars import walk as walk_schema
from tests.kit.tools import tool
from tests.kit.turns import call_end, call_start, check_states, section_end
from tests.kit.walks import walk
from tests.schema.test_differential import SCHEMAS, VALUES
from tests.schema.test_suite import DRAFTS, groups

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 40},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 3},
        "scale": {"const": 3.14},
    },
    "required": ["city"],
}
ARGUMENTS = '{"city": "北京\\n\\"x\\"", "unit":"celsius","days" : [1,2], "scale": 3.14, "more": {"<|im_end|>": [null]}}'


@pytest.fixture(scope="module")
def engine(small_compiler: Compiler) -> XGrammarEngine:
    """As all engines here, one that other tests have started: each has a process."""
    return started(small_compiler)


@pytest.fixture(scope="module")
def compiler(small_compiler: Compiler) -> Compiler:
    made = Compiler(small_compiler.vocabulary)
    made._engines["xgrammar"], made.default_engine = started(small_compiler), "xgrammar"
    return made


@pytest.fixture(scope="module")
def byte_engine() -> XGrammarEngine:
    return started(byte_compiler())


def started(compiler: Compiler) -> XGrammarEngine:
    found = compiler.engine("xgrammar")
    assert isinstance(found, XGrammarEngine)
    return found


def accepts(engine: XGrammarEngine, schema: Any, text: str | bytes) -> bool:
    """The engine over the vocabulary of bytes."""
    raw = text if isinstance(text, bytes) else text.encode()
    return takes(engine.compile(json.dumps(schema)).matcher("schema"), raw)


@pytest.mark.parametrize("which", ["small_compiler", pytest.param("real_compiler", marks=pytest.mark.slow)])
def test_no_special_token_but_the_end_is_ever_allowed(which: str, request: pytest.FixtureRequest) -> None:
    compiler: Compiler = request.getfixturevalue(which)
    vocabulary, matcher = compiler.vocabulary, started(compiler).compile(json.dumps(WEATHER)).matcher("schema")
    specials = {*vocabulary.unordinary_ids}
    for token in vocabulary.encode(ARGUMENTS):
        allowed = mask_of(matcher, vocabulary)
        assert not specials & {*allowed} and max(allowed) < vocabulary.size
        assert not matcher.is_complete() and not any(map(matcher.accept, specials))
        assert token in allowed and matcher.accept(token)
    assert matcher.is_complete()
    assert mask_of(matcher, vocabulary) == [vocabulary.format.call_end]


def test_states_are_those_of_a_fresh_matcher(compiler: Compiler) -> None:
    """After rollbacks, in forks and in batches, before each token of the arguments."""
    vocabulary, compiled = compiler.vocabulary, request_of(compiler, WEATHER | {"additionalProperties": True})
    ids = [*call_start(vocabulary), *vocabulary.encode(ARGUMENTS), *call_end(vocabulary), *section_end(vocabulary)]
    check_states(compiled.matcher, ids, Random(0))


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", [b'"\xed\xa0\x80"', b'"\xff"', b'"\xe0\x80\x80"', b'"\t"', b'"\x00"', b'"\\x"', b'"\\ud800"']
)
@pytest.mark.parametrize("schema", [{"type": "string"}, {"type": "string", "minLength": 1}, {"pattern": "^[^x]*"}, {"pattern": "."},
                                    {"not": {"const": "a"}}, {}], ids=str)  # fmt: skip
def test_strings_are_utf8_and_json(byte_engine: XGrammarEngine, schema: Any, text: bytes) -> None:
    whole = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    assert accepts(byte_engine, whole, '{"a":"é\\n\\"\\\\😀"}')
    assert not accepts(byte_engine, whole, b'{"a":' + text + b"}")
    assert not accepts(byte_engine, whole, b'{"a":"",' + text + b":1}")


@pytest.mark.parametrize("name", ["city", 'a"b', "a\\b", "a\nb", "é😀", "\u2028", "", "a/b", "a-?", "\x00"])
def test_a_declared_key_is_never_repeated(byte_engine: XGrammarEngine, name: str) -> None:
    schema = {"type": "object", "properties": {name: {"type": "integer"}, "z": {}}}
    key = json.dumps(name, ensure_ascii=False)
    escaped = '"' + "".join(f"\\u{ord(character):04x}" for character in name if ord(character) < 0x10000) + '"'
    assert accepts(byte_engine, schema, f'{{{key}:1,"z":0,"Q{key[1:]}:""}}')
    assert not accepts(byte_engine, schema, f'{{{key}:1,{key}:""}}')
    assert not accepts(byte_engine, schema, f'{{"z":1,{key}:""}}')
    if name not in {"", "é😀", "\x00"}:
        assert not accepts(byte_engine, schema, f'{{{escaped}:""}}')
    assert byte_engine.compile(json.dumps(schema)).coverage.is_sound


def test_engine_options_in_a_schema_are_ignored(byte_engine: XGrammarEngine) -> None:
    plain = {"type": "object", "properties": {"a": {"type": "integer"}}}
    steered = plain | {
        "x-guidance": {"whitespace_pattern": "x"},
        "any_whitespace": False,
        "strict_mode": True,
        "x-order": ["a"],
        "unknown": {"$ref": "#/nowhere"},
        "$defs": {"any": {"type": "null"}, "string": False, "n0": False},
    }
    for text in ('{"a": 1}', '{"a":1,"b":"x"}', '{ "b" : [ ] }', '{"a":""}', "{}", "{"):
        assert accepts(byte_engine, steered, text) == accepts(byte_engine, plain, text)
    assert not accepts(byte_engine, plain, '{"a":' + " " * 17 + "1}")
    assert accepts(byte_engine, plain, '{"a":' + " " * 16 + "1}")


NOT_ENFORCED: list[tuple[str, Any, str]] = [
    ("multipleOf", {"type": "integer", "multipleOf": 3}, "relaxed"),
    ("multipleOf", {"multipleOf": 3}, "relaxed"),
    ("uniqueItems", {"type": "array", "uniqueItems": True}, "relaxed"),
    ("contains", {"type": "array", "contains": {"type": "integer"}}, "relaxed"),
    ("maxLength", {"type": "string", "pattern": "^a", "maxLength": 9}, "relaxed"),
    ("maxLength", {"type": "string", "maxLength": 65}, "relaxed"),
    ("minLength", {"type": "string", "format": "date", "minLength": 2}, "relaxed"),
    ("minLength", {"minLength": "1"}, "relaxed"),
    ("pattern", {"type": "string", "pattern": "(?=a)b"}, "relaxed"),
    ("not", {"type": "string", "pattern": "^a", "not": {"enum": ["a"]}}, "relaxed"),
    ("patternProperties", {"type": "object", "patternProperties": {"^a": {"type": "integer"}}}, "relaxed"),
    ("minProperties", {"type": "object", "minProperties": 2}, "relaxed"),
    ("$ref", {"$ref": "https://x.y/z"}, "relaxed"),
    ("type", {"type": "text"}, "read_as"),
    ("type", {"type": "quantity"}, "relaxed"),
]


@pytest.mark.parametrize(("keyword", "schema", "status"), NOT_ENFORCED, ids=str)
def test_what_is_not_enforced_is_named_and_refused_if_strict(
    compiler: Compiler, keyword: str, schema: Any, status: str
) -> None:
    parameters, location = {"type": "object", "properties": {"a": schema}}, f"#/properties/a/{keyword}"
    uses = getattr(request_of(compiler, parameters).coverage("f"), status)
    assert location in [use.pointer for use in uses]
    assert all(use.pointer.startswith(location) and use.reason for use in uses)
    with pytest.raises(UnsupportedSchema, match="is strict|is not enforced") as refused:
        request_of(compiler, parameters, strict=True)
    assert refused.value.location.partition("#")[2].startswith(location[1:]) and refused.value.remedy
    assert (refused.value.keyword, refused.value.engine) == (keyword, "xgrammar")


def test_a_schema_without_instances_is_refused_with_its_location(compiler: Compiler) -> None:
    with pytest.raises(UnsupportedSchema, match="no value satisfies") as refused:
        compiler.grammar('{"properties": {"a": false}, "required": ["a"]}', "tools[0]")
    assert (refused.value.location, refused.value.keyword) == ("tools[0]#", "")
    assert refused.value.remedy


@pytest.mark.parametrize("choice", ["required", "auto"])
def test_a_random_model_calls_through_xgrammar(compiler: Compiler, choice: str) -> None:
    tools = [tool(name, WEATHER) for name in ("a", "b")]
    spec = ToolCallSpec.from_openai({"tools": tools, "tool_choice": choice, "first_index": 3})
    calls = 0
    for seed in range(4):
        ids = walk(compiler.compile(spec).matcher(), compiler.vocabulary, seed, WEATHER)
        completion = parse_completion(ids, compiler.vocabulary)
        assert not (completion.cut_calls or completion.malformed)
        for position, call in enumerate(completion.tool_calls):
            assert (call.name in {"a", "b"}) and call.index == 3 + position
            jsonschema.validate(json.loads(call.arguments), WEATHER)
        calls += len(completion.tool_calls)
    assert calls or choice == "auto"


@pytest.mark.slow
def test_each_request_chooses_its_engine(small_compiler: Compiler) -> None:
    tools = [tool("f", {"type": "object", "properties": {"a": {"multipleOf": 2}}})]
    for name in ("llguidance", "xgrammar"):
        coverage = small_compiler.compile(ToolCallSpec.from_openai({"tools": tools, "engine": name})).coverage("f")
        assert (coverage.engine, coverage.is_sound) == (name, name == "llguidance")
    with pytest.raises(InvalidRequest, match="engine"):
        ToolCallSpec.from_openai({"tools": tools, "engine": "outlines"})


@pytest.mark.slow
def test_no_invalid_instance_is_accepted_where_nothing_is_relaxed(byte_engine: XGrammarEngine) -> None:
    counts: Counter[str] = Counter()
    wrong = []
    for draft, path, group in groups():
        grammar = compile_schema(byte_engine, group["schema"])
        kind = "refused" if grammar is None else "sound" if grammar.coverage.is_sound else "relaxed"
        counts[f"groups {kind}"] += 1
        if grammar is None:
            continue
        for case in group["tests"]:
            try:
                is_accepted = accepts_value(grammar, case["data"])
            except UnicodeEncodeError:
                continue  # a lone surrogate, which no tokenizer has
            counts[f"{kind} {'valid' if case['valid'] else 'invalid'} {'accepted' if is_accepted else 'rejected'}"] += 1
            if is_accepted and not case["valid"] and kind == "sound":
                wrong.append((path.name, group["description"], case["description"]))
        written = walk_schema(grammar, len(counts))
        if written is None or r"\\p{" in json.dumps(group["schema"]):
            continue  # did not end; or Python's re, which the oracle uses, has no \p
        counts["written"] += 1
        validator = DRAFTS[draft][1]
        value = json.loads(written)
        if kind == "sound" and not validator(group["schema"], format_checker=FORMAT_CHECKER).is_valid(value):
            wrong.append((path.name, group["description"], written))
    assert not wrong, counts
    assert counts["groups sound"] >= 519  # a ratchet: it may only get better
    assert counts["sound invalid rejected"] >= 1_059
    assert counts["sound valid accepted"] >= 1_378
    assert counts["groups refused"] <= 62


@pytest.mark.slow
@settings(max_examples=tries(133, everything=400), deadline=None, suppress_health_check=list(HealthCheck))
@given(SCHEMAS, st.lists(VALUES, min_size=1, max_size=8), st.integers(0, 2**32))
@example({"type": "number", "minimum": 1.5, "maximum": 2.5}, [1.5, 2, 2.5], 0)
def test_what_is_accepted_is_valid_where_nothing_is_relaxed(
    byte_engine: XGrammarEngine, schema: Any, values: list[Any], seed: int
) -> None:
    grammar = compile_schema(byte_engine, schema)
    if grammar is None:
        return
    written = walk_schema(grammar, seed)
    if grammar.coverage.is_sound:
        validator = jsonschema.Draft202012Validator(schema, format_checker=FORMAT_CHECKER)
        assert written is None or validator.is_valid(json.loads(written)), (schema, written)
        for value in values:
            if accepts_value(grammar, value):
                assert validator.is_valid(value), (schema, value)


starts_a_process = pytest.mark.slow  # and compiles for seconds


def many_optional(count: int) -> Any:
    return {"type": "object", "properties": {f"p{number}": {"type": "boolean"} for number in range(count)}}


HOSTILE = {
    "properties": many_optional(4000),
    "counted": many_optional(900) | {"minProperties": 450, "maxProperties": 460, "additionalProperties": False},
    "backtracking": {"properties": {"a": {"pattern": "^(a*)*(a*)*(a*)*$", "enum": ["a" * 200 + "b"]}}},
}


@starts_a_process
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_stay_within_the_budget(name: str) -> None:
    engine = XGrammarEngine(Vocabulary.of_bytes(), seconds=0.5)
    with pytest.raises(SchemaTooCostly) as refused:
        engine.compile(json.dumps(HOSTILE[name]))
    assert refused.value.budget in {"compile_ms", "compile_bytes"}
    assert refused.value.limit and refused.value.remedy
    assert engine.compile('{"type":"object"}').coverage.is_sound


@starts_a_process
def test_a_killed_worker_is_restarted() -> None:
    engine = XGrammarEngine(Vocabulary.of_bytes())
    process = engine._worker._process
    assert process is not None
    process.kill()
    process.wait()
    assert engine.compile('{"type":"object"}').cost_bytes > 0
    assert engine._worker._process is not process


@starts_a_process
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


@starts_a_process
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


@starts_a_process
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
