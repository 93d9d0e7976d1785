"""Any two kinds of values meet, and tokens that hold several of JSON's structural characters do what their bytes do.

The kinds meet as alternatives, items, members and keys' values, in each encoding. Their vocabulary has few tokens, and many
cross from one value into the next: all are tried. The real vocabulary has some 800, such as ``","","``, ``"},{"`` or
``]]``. Each is tried at every place of some texts, whose items and members are at, below and above their counts.
"""

import json
import random
from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from constrained_k2 import Compiler, ConstrainedK2Error, Vocabulary
from constrained_k2.formats.kimi_k3 import KIMI_K3
from constrained_k2.schema.undeclared_keys import UndeclaredKeys
from tests.engines.masked_walks import CROSSING, PARTS, vocabulary_of
from tests.kit.budget import LEVEL, SEED
from tests.laws.feeding import Bench, Broken, structural_tokens
from tests.laws.laws import Trial

TABLES = json.loads(Path(__file__).with_name("kinds.json").read_text("utf-8"))
KINDS: dict[str, Any] = TABLES["kinds of values"]
"""Name -> a schema, and values; the first is valid."""
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
    """The places in which two kinds meet; in the first, the schema is on the fast path, and its grammar is made without its text."""
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
    kinds = [name for name in KINDS if KINDS[name]["schema"].get("type") == "string" or "string" in name]
    some_of = [*combinations(kinds, 3)]
    some_of = some_of[SEED % 3 :: 3] if LEVEL == "fast" else some_of
    found = [fault for some in some_of for fault in faults_of(crossing[encoding], *some)]
    assert not found, "\n".join(map(str, found[:5]))


def faults_of(bench: Bench, name: str, *others: str) -> Iterator[Broken]:
    one, *rest = (KINDS[each]["schema"] for each in (name, *others))
    two = rest[0] if len(rest) == 1 else {"anyOf": rest}
    values = [value for each in dict.fromkeys((name, *others)) for value in KINDS[each]["values"]]
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


CONTAINERS: dict[str, Any] = TABLES["arrays"] | TABLES["objects"]
"""Name -> a schema of the member "a" of closed arguments, and its values."""


@pytest.fixture(scope="module", params=["json", pytest.param("xtml", marks=pytest.mark.slow)])
def bench(request: pytest.FixtureRequest, both: tuple[Bench, Bench]) -> Bench:
    found = both[request.param == "xtml"]
    assert len(structural_tokens(found.vocabulary)) > 500
    return found


@pytest.mark.parametrize(
    ("name", "undeclared"),
    [*((name, "forbid") for name in CONTAINERS), *((name, "allow") for name in TABLES["objects"])],
)
def test_tokens_do_what_their_bytes_do(bench: Bench, name: str, undeclared: UndeclaredKeys) -> None:
    schema = {"type": "object", "properties": {"a": CONTAINERS[name]["schema"]}, "required": ["a"]}
    trial = Trial(bench, schema, random.Random(name), Counter(), undeclared)
    assert trial.is_complete or undeclared == "forbid"
    broken: dict[str, Broken] = {}
    for value in CONTAINERS[name]["values"]:
        matcher = trial.matcher()
        ids = bench.bytewise(trial.pieces({"a": value}))
        for number, token in enumerate(ids):
            before = ids[:number]
            try:
                row = bench.mask(matcher, before)
                bench.direct(matcher, before)
                bench.compare(matcher, before, row.copy())
            except Broken as one:
                broken.setdefault(one.law, one)
            assert matcher.accept(token), json.dumps(value)
        assert matcher.is_complete()
    assert not broken, "\n".join(map(str, broken.values()))
