"""No step after admission does much work, whatever the schema: masks of a batch wait for the slowest one.

Work is counted, not timed: the fuel that LLGuidance's lexers spend (10,000 to 45,000 take a millisecond), and the calls
of Python functions (some 10,000 a millisecond).
"""

import json
import random
import string
import sys
from collections.abc import Callable
from typing import Any

import pytest

from constrained_k2 import Compiler, Vocabulary, allocate_bitmask
from constrained_k2.engines.llguidance.engine import LLGuidanceEngine
from constrained_k2.engines.llguidance.grammar import LLGuidanceGrammar
from constrained_k2.engines.llguidance.lexer_cost import spent_fuel
from constrained_k2.engines.protocol import ArgumentEncoding
from constrained_k2.vocabulary.bitmask import allowed_ids


def word(random_: random.Random, length: int = 3) -> str:
    return "".join(random_.choices(string.ascii_lowercase, k=length))


def text(pattern: str = "", **keywords: Any) -> dict[str, Any]:
    return {"type": "string", **({"pattern": pattern} if pattern else {}), **keywords}


def around(random_: random.Random) -> str:
    return f"^{word(random_)}.*{word(random_)}$"


def within(random_: random.Random) -> str:
    return f"{word(random_)}.*{word(random_)}"


def nested(random_: random.Random) -> Any:
    value: Any = text()
    for _ in range(60):
        value = {"type": "object", "properties": {word(random_): value, word(random_, 4): {"type": "number"}}}
    return value


def meeting(random_: random.Random) -> Any:
    either = {"if": text(f"^{word(random_)}"), "then": text(f"{word(random_)}$")}
    return {"type": "string", "allOf": [either] * 4}


HOSTILE: dict[str, Callable[[random.Random], Any]] = {
    "30 exclusive patterns": lambda r: {"oneOf": [text(around(r)) for _ in range(30)]},
    "10 exclusive patterns": lambda r: {"oneOf": [text(around(r)) for _ in range(10)]},
    "30 exclusive beginnings": lambda r: {"oneOf": [text(f"^{word(r)}") for _ in range(30)]},
    "60 alternative patterns": lambda r: {"anyOf": [text(around(r)) for _ in range(60)]},
    "30 patterns anywhere": lambda r: {"anyOf": [text(within(r)) for _ in range(30)]},
    "8 patterns at once": lambda r: {"allOf": [text(within(r)) for _ in range(8)]},
    "8 forbidden patterns": lambda r: {**text(), "not": {"anyOf": [text(within(r)) for _ in range(8)]}},
    "alternative counts": lambda _: {"anyOf": [text(f".*{letter}.{{10}}$") for letter in "etao"]},
    "counted groups": lambda _: text("^(ab?){500}$"),
    "counted alternatives": lambda _: text("^(a|b|ab){200}$"),
    "counts in counts": lambda _: text("^(.{0,5}x){100}$"),
    "a letter before 8 others": lambda _: text(".*a.{8}$"),
    "a letter before 20 others": lambda _: text(".*a.{20}$"),
    "20 letters anywhere": lambda _: text("^(.*a){20}$"),
    "500 words": lambda r: text("^(?:" + "|".join(word(r, 6) for _ in range(500)) + ")*$"),
    "500 words of classes": lambda r: text("^(?:" + "|".join(f"[{word(r)}]{word(r)}.?" for _ in range(500)) + ")+$"),
    "looks ahead": lambda _: text("^(?=.*[a-z])(?=.*[A-Z])(?=.*[0-9]).{8,64}$"),
    "a pattern in 10,000 characters": lambda _: text("^[a-z ]+$", maxLength=10_000),
    "words in 10,000 characters": lambda _: text(r"^(\w+ ){1,500}$", maxLength=10_000),
    "30 lengths": lambda _: {"anyOf": [text(minLength=10 * n, maxLength=10 * n + 5) for n in range(30)]},
    "5,000 values": lambda r: {"enum": [word(r, 8) for _ in range(5000)]},
    "1,000 values and a pattern": lambda r: {"anyOf": [{"enum": [word(r, 8) for _ in range(1000)]}, text(around(r))]},
    "1,000 forbidden values": lambda r: {**text(), "not": {"enum": [word(r, 8) for _ in range(1000)]}},
    "300 forbidden numbers": lambda r: {"type": "number", "not": {"enum": [r.randrange(10**9) for _ in range(300)]}},
    "10 multiples": lambda _: {"anyOf": [{"type": "integer", "multipleOf": 9999 - n} for n in range(10)]},
    "long decimals": lambda _: {"type": "number", "multipleOf": 0.9994},
    "formats": lambda _: {"anyOf": [text(format=name) for name in ("date-time", "email", "uri", "hostname", "ipv6")]},
    "an email of 10,000 characters": lambda _: text(format="email", maxLength=10_000),
    "200 members": lambda r: {"type": "object", "properties": {word(r, 6): text() for _ in range(200)}},
    "keys with patterns": lambda r: {
        "type": "object",
        "properties": {word(r, 6): text() for _ in range(50)},
        "patternProperties": {around(r): {"type": "integer"} for _ in range(12)},
    },
    "objects with patterns": lambda r: {
        "oneOf": [{"type": "object", "properties": {"t": {"const": word(r)}, "v": text(within(r))}} for _ in range(20)]
    },
    "nested objects": nested,
    "conditions on a pattern": meeting,
    "items that are contained": lambda r: {
        "type": "array", "items": text(f"{word(r)}.*"), "contains": text(f"{word(r)}$"), "minContains": 2
    },
}  # fmt: skip


MOST_FUEL = 350_000
MOST_CALLS = 100_000
TOKENS = 16


def fuel(engine: LLGuidanceEngine, grammar: LLGuidanceGrammar) -> int:
    """Return what all lexers have spent that a matcher of a grammar may use."""
    terminals = engine.mask_cache.direct_masks().terminals._read.values()
    prototype = grammar.prototype.matcher
    return sum(map(spent_fuel, terminals)) + (0 if prototype is None else spent_fuel(prototype))


def calls_of(work: Callable[[], Any]) -> int:
    count = 0

    def note(*_: Any) -> None:
        nonlocal count
        count += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count // 2  # an event for each call, and one for its return


def written(engine: LLGuidanceEngine, vocabulary: Vocabulary, kind: str, encoding: ArgumentEncoding) -> list[str]:
    """Return the steps of a call that do too much work, with their token, fuel and calls."""
    random_ = random.Random(kind)
    schema = {"type": "object", "properties": {"a": HOSTILE[kind](random_)}, "required": ["a"]}
    grammar = engine.compile(json.dumps(schema), encoding=encoding)
    matcher, row = grammar.matcher("", may_relax=True), allocate_bitmask(1, vocabulary.size)[0]
    begin = vocabulary.encode('{"a":"') if encoding == "json" else []
    spent, slow = fuel(engine, grammar), []
    matcher.fill(row)
    for count in range(TOKENS):
        allowed = [token for token in allowed_ids(row).tolist() if token != vocabulary.format.engine_stop]
        if not allowed:
            break
        token = begin[count] if count < len(begin) and begin[count] in allowed else random_.choice(allowed)
        calls = calls_of(lambda: (matcher.accept(token), matcher.fill(row)))  # noqa: B023 - called at once
        before, spent = spent, fuel(engine, grammar)
        if spent - before > MOST_FUEL or calls > MOST_CALLS:
            slow.append(f"{count}: {vocabulary.ordinary_bytes(token)!r}, {spent - before} fuel, {calls} calls")
    assert matcher.grammar is grammar  # it met no limit
    return slow


@pytest.fixture(scope="module")
def engine(real_vocabulary: Vocabulary) -> LLGuidanceEngine:
    """An engine of these tests alone."""
    return LLGuidanceEngine(real_vocabulary)


@pytest.fixture(scope="module")
def k3_engine(k3_real_compiler: Compiler) -> LLGuidanceEngine:
    return LLGuidanceEngine(k3_real_compiler.vocabulary)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "encoding"), [*((kind, "json") for kind in HOSTILE), *((kind, "xtml") for kind in list(HOSTILE)[::3])]
)
def test_a_step_does_little_work(
    request: pytest.FixtureRequest, real_vocabulary: Vocabulary, kind: str, encoding: ArgumentEncoding
) -> None:
    if encoding == "json":
        assert not written(request.getfixturevalue("engine"), real_vocabulary, kind, encoding)
    else:
        vocabulary = request.getfixturevalue("k3_real_compiler").vocabulary
        assert not written(request.getfixturevalue("k3_engine"), vocabulary, kind, encoding)


@pytest.mark.parametrize(
    ("value", "one", "other"),
    [
        (1234, {"type": "integer", "maximum": 2000}, {"type": "integer", "maximum": 3000}),
        ("abc12", text("^[a-c]+[0-9]+$"), text("^[a-c]+[0-9]*$")),
    ],
)
def test_what_follows_a_terminal_is_walked_once_for_all(
    real_vocabulary: Vocabulary, engine: LLGuidanceEngine, value: Any, one: dict[str, Any], other: dict[str, Any]
) -> None:
    tokens = real_vocabulary.encode(json.dumps({"a": value, "b": 1}))

    def most_calls(schema: dict[str, Any]) -> int:
        members = {"type": "object", "properties": {"a": schema, "b": {"type": "integer"}}}
        matcher, row = engine.compile(json.dumps(members)).matcher(""), allocate_bitmask(1, real_vocabulary.size)[0]
        return max(calls_of(lambda: (matcher.fill(row), matcher.accept(token))) for token in tokens)  # noqa: B023

    most_calls(one)
    assert most_calls(other) < 2000  # 700 and 1,400; 11,800 and 2,700 if each terminal walks them
