"""Any two kinds of values meet: as alternatives, items, members and keys' values, in each encoding.

The vocabulary has few tokens, and many cross from one value into the next: all are tried.
"""

import random
from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest

from constrained_k2 import Compiler, ConstrainedK2Error, Vocabulary
from constrained_k2.formats.kimi_k3 import KIMI_K3
from tests.engines.masked_walks import vocabulary_of
from tests.engines.test_direct_masks import CROSSING, PARTS
from tests.kit.budget import LEVEL, SEED
from tests.laws.feeding import Bench, Broken
from tests.laws.laws import Trial

# Name -> schema, and values; the first value is valid.
KINDS: dict[str, tuple[Any, list[Any]]] = {
    "free string": ({"type": "string"}, ["x", "\x7f"]),
    "pattern": ({"type": "string", "pattern": "^a+b?$"}, ["aab", "b"]),
    "format": ({"type": "string", "format": "date"}, ["2024-02-29", "2024-02-30"]),
    "length": ({"type": "string", "minLength": 1, "maxLength": 2}, ["é\x7f", "abc"]),
    "listed strings": ({"enum": ["ab", "abc", "b"]}, ["ab", "a"]),
    "excluded strings": ({"type": "string", "not": {"enum": ["ab", ""]}}, ["abc", "ab"]),
    "free integer": ({"type": "integer"}, [12, 0.5]),
    "free number": ({"type": "number"}, [-1.5, 12]),
    "bounded integer": ({"type": "integer", "minimum": 1}, [1, 0]),
    "range": ({"type": "number", "minimum": -0.5, "exclusiveMaximum": 12}, [-0.25, 12]),
    "listed numbers": ({"enum": [1, 12, -0.5]}, [12, 2]),
    "multiple": ({"type": "integer", "multipleOf": 5}, [-10, 12]),
    "boolean": ({"type": "boolean"}, [True]),
    "null": ({"type": "null"}, [None]),
    "array": ({"type": "array", "items": {"type": "integer"}, "maxItems": 2}, [[1, 2], [1, 2, 3]]),
    "any array": ({"type": "array"}, [["a", []], []]),
    "closed object": (
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False},
        [{"a": "b"}, {}],
    ),
    "any object": ({"type": "object"}, [{"b": {}}, {}]),
}
_WHOLE_ITEMS = ('","","', "],[],[", "1,1,1", "},{},", "true,true,", "null,null]")  # tokens with a whole item inside
_SHARE = 0.03  # of the places of texts at which all tokens are tried


@pytest.fixture(scope="module")
def crossing() -> dict[str, Bench]:
    few = vocabulary_of(CROSSING + _WHOLE_ITEMS, *PARTS)
    tokens = {token: raw for token in range(few.size) if (raw := few.ordinary_bytes(token))}
    special = {text: token for token, text in enumerate(sorted(KIMI_K3.special_texts), few.size)}
    xtml = Vocabulary(tokens, special, few.size + len(special), few.encoder)
    several = [token for token, raw in tokens.items() if len(raw) > 1]
    return {name: Bench(Compiler(one), several) for name, one in (("json", few), ("xtml", xtml))}


def schemas(one: Any, other: Any) -> Iterator[tuple[str, Any]]:
    """The places in which two kinds meet; in the first, the schema is plain and its grammar is made without its text."""
    either = {"anyOf": [one, other]}
    yield (
        "plain",
        {
            "u": either,
            "l": {"type": "array", "items": either, "maxItems": 2},
            "m": {"type": "object", "properties": {"a": one, "ab": other}, "additionalProperties": False},
            "r": {"type": "object", "additionalProperties": either},
        },
    )
    prefix = {"type": "array", "prefixItems": [one, other], "items": False}
    yield "unique", {"s": {"type": "array", "items": either, "uniqueItems": True, "minItems": 1}, "p": prefix}


def texts(where: str, values: list[Any]) -> Iterator[Any]:
    """Arguments with each value in each place."""
    if where == "unique":
        for one, other in zip(values, [*values[1:], values[0]], strict=True):
            yield {"s": [one, other]}
        yield {"s": [values[0], values[-1], values[0]]}
        yield {"p": [values[0], values[-1]]}
        return
    for at, one in enumerate(values):
        yield {"u": one}
        yield {"l": [one, values[at - 1]]}
        yield {"r": {"x": one}}
        yield {"m": {"a": one, "ab": values[at - 1]}}


@pytest.mark.parametrize("encoding", ["json", pytest.param("xtml", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", KINDS)
def test_two_kinds_of_values_meet(crossing: dict[str, Bench], name: str, encoding: str) -> None:
    broken = Counter[str]()
    examples: dict[str, str] = {}
    names = list(KINDS)
    others = names[names.index(name) :]
    if LEVEL == "fast":  # each kind with itself, and some of the others, which the commit chooses
        others = [name, *others[1 + SEED % 3 :: 3]]
    for other in others:
        for fault in faults_of(crossing[encoding], name, other):
            broken[fault.law] += 1
            examples.setdefault(fault.law, f"{name} and {other}: {fault.detail}")
    assert not broken, "\n".join(f"{broken[law]} x {law}: {example}" for law, example in examples.items())


@pytest.mark.parametrize("encoding", ["json", pytest.param("xtml", marks=pytest.mark.slow)])
def test_three_kinds_of_strings_meet(crossing: dict[str, Bench], encoding: str) -> None:
    """Strings of several terminals in one place: some become one terminal, others do not."""
    kinds = [name for name, (schema, _) in KINDS.items() if schema.get("type") == "string" or "string" in name]
    some_of = [*combinations(kinds, 3)]
    some_of = some_of[SEED % 3 :: 3] if LEVEL == "fast" else some_of
    found = [fault for some in some_of for fault in faults_of(crossing[encoding], *some)]
    assert not found, "\n".join(map(str, found[:5]))


def faults_of(bench: Bench, name: str, *others: str) -> Iterator[Broken]:
    one, *rest = (KINDS[each][0] for each in (name, *others))
    two = rest[0] if len(rest) == 1 else {"anyOf": rest}
    values = [value for each in dict.fromkeys((name, *others)) for value in KINDS[each][1]]
    values += ["ab", 1] if others == (name,) else []
    draw = random.Random(" ".join((name, *others)))
    for where, properties in schemas(one, two):
        schema = {"type": "object", "properties": properties, "additionalProperties": False}
        trial = Trial(bench, schema, draw, Counter(), "allow")
        for value in texts(where, values):
            try:
                trial.text(value, probes=_SHARE, is_direct=True)
            except Broken as fault:
                yield fault
            except ConstrainedK2Error as error:
                yield Broken("an admitted schema fails in the call", error)
