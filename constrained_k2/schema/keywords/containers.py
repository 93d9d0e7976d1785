"""Implements the keywords for objects and arrays, such as ``properties``, ``items`` and ``contains``."""

from collections.abc import Iterator
from dataclasses import replace

from constrained_k2.schema.document import IllFormed
from constrained_k2.schema.keywords.keyword import Case, Children, Keyword, NotExpressible, Reader, size_keywords
from constrained_k2.schema.pattern import in_ecma
from constrained_k2.schema.shapes import (
    ANY,
    Array,
    Declared,
    KeyMap,
    Node,
    Object,
    Shape,
    Witness,
    negated,
    with_value,
    without_key,
)


def _members(read: Reader) -> list[Shape]:
    named = tuple((name, read.at("properties", name)) for name in read.object("properties"))
    extra = read.or_any("additionalProperties")
    patterns = []
    for written in read.object("patternProperties"):
        pattern = read.in_ecma(written, "patternProperties")
        try:
            problem = read.pattern_problem(pattern, "patternProperties")
        except IllFormed as error:
            problem = error.problem
            read.relax("patternProperties", problem)
        if problem:
            for keyword in {"patternProperties", "additionalProperties"} & read.schema.keys():
                read.note(keyword, "relaxed", problem)
            extra = ANY  # unknown which keys match the pattern
        else:
            patterns.append((pattern, read.at("patternProperties", written)))
    rules_others = "additionalProperties" in read.schema or bool(read.object("patternProperties"))
    declared = Declared(frozenset(read.object("properties")), bool(named), rules_others)
    return [Object(maps=frozenset({KeyMap(named, tuple(patterns), extra)}), declared=declared)]


def _required(read: Reader) -> list[Shape]:
    names = frozenset(read.names("required"))
    return [Object(required=names, declared=Declared(names))]


def _not_members(read: Reader) -> Iterator[Shape]:
    patterns = [(read.in_ecma(written, "patternProperties"), written) for written in read.object("patternProperties")]
    problems = [read.pattern_problem(pattern, "patternProperties") for pattern, _ in patterns]
    if problem := next(filter(None, problems), ""):
        read.note_negation("patternProperties", problem)
        patterns = []
    for key in read.object("properties"):
        yield with_value(key, read.at("properties", key, holds=False))
    for pattern, written in patterns:
        value = read.at("patternProperties", written)
        yield from _with_wanted(read, "patternProperties", value, Witness(found=frozenset({pattern})))
    if read.schema.get("additionalProperties", True) not in (True, {}) and not problem:
        names, absent = frozenset(read.object("properties")), frozenset(pattern for pattern, _ in patterns)
        value = read.at("additionalProperties")
        yield from _with_wanted(read, "additionalProperties", value, Witness(excluded=names, absent=absent))


def _with_wanted(read: Reader, keyword: str, value: Node, wanted: Witness) -> Iterator[Object]:
    """Objects with a witness: a member whose key fits ``wanted`` and whose value fails the node ``value``."""
    if not read.normalizer.exact_witnesses:
        read.note_negation(keyword)
    else:
        fails = ANY if read.normalizer.document.find(min(value)[0]) is False else negated(value)
        yield Object(wanted=frozenset({replace(wanted, value=fails, pointer=f"{read.pointer}/{keyword}")}))


def _evaluated_members(read: Reader, _: object) -> Iterator[list[Case]]:
    names, patterns = frozenset(read.object("properties")), frozenset(map(in_ecma, read.object("patternProperties")))
    if any(read.pattern_problem(pattern, "patternProperties") for pattern in patterns):
        raise NotExpressible("patternProperties has a pattern that cannot be matched")
    yield [Case(names=names, patterns=patterns, all_properties="additionalProperties" in read.schema)]


def _not_property_names(read: Reader) -> list[Shape]:
    if not read.normalizer.exact_witnesses:
        read.note_negation("propertyNames")
        return []
    names = read.at("propertyNames", holds=False)
    return [Object(wanted=frozenset({Witness(names=names, pointer=f"{read.pointer}/propertyNames")}))]


def _items(read: Reader) -> list[Shape]:
    prefix, rest = read.items()
    return [Array(prefix, read.or_any(rest))]


def _not_items(read: Reader) -> Iterator[Shape]:
    prefix, keyword = read.items()
    rest = read.or_any(keyword)
    for position, node in enumerate(prefix):
        yield Array((*(ANY,) * position, negated(node)), shortest=position + 1)
    if rest != ANY and prefix:
        read.note_negation("items", "after prefixItems, items has no exact negation")
    elif rest != ANY:
        yield Array(contains=frozenset({(negated(rest), 1, None)}))


def _evaluated_items(read: Reader, _: object) -> Iterator[list[Case]]:
    prefix, rest = read.items()
    yield [Case(prefix=len(prefix), all_items=rest in read.schema)]


def _contains(read: Reader, *, holds: bool) -> Iterator[Shape]:
    if "contains" in read.schema:
        node, fewest, most = read.at("contains"), read.size("minContains"), read.size("maxContains")
        fewest = 1 if fewest is None else fewest
        if holds:
            yield Array(contains=frozenset({(node, fewest, most)}))
        elif fewest == 1:
            yield Array(rest=negated(node))
        elif fewest > 1:
            yield Array(contains=frozenset({(node, 0, fewest - 1)}))
        if most is not None and not holds:
            yield Array(contains=frozenset({(node, most + 1, None)}))


def _not_unique(read: Reader) -> list[Shape]:
    if read.schema["uniqueItems"] is not False:
        read.note_negation("uniqueItems")
    return []


KEYWORDS = (
    Keyword(
        {"properties": Children.MAP, "patternProperties": Children.MAP, "additionalProperties": Children.SCHEMA},
        _members,
        negate=_not_members,
        evaluates=_evaluated_members,
        examples={
            "properties, required": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
            "additionalProperties": {"type": "object", "additionalProperties": {"type": "boolean"}},
            "patternProperties": {"patternProperties": {"^x": {"type": "null"}, "y$": {"minLength": 1}}},
            "patternProperties, more than 4": {"patternProperties": {f"^{name}": {} for name in "abcdef"}},
        },
    ),
    Keyword(
        {"required": Children.NONE},
        _required,
        negate=lambda read: map(without_key, read.names("required")),
        examples={"required, more than 64": {"type": "object", "required": [f"key{n}" for n in range(70)]}},
    ),
    Keyword(
        {"propertyNames": Children.SCHEMA},
        lambda read: [Object(names=read.at("propertyNames"), declared=Declared(rules_others=True))],
        negate=_not_property_names,
        examples={"propertyNames": {"type": "object", "propertyNames": {"pattern": "^[a-z]+$", "maxLength": 8}}},
    ),
    *size_keywords(
        *("Properties", Object, "fewest", "most"),
        {
            "minProperties, maxProperties of declared keys": {
                "properties": {"a": {}, "b": {}, "c": {}},
                "additionalProperties": False,
                "minProperties": 2,
            },
            "minProperties with undeclared keys": {"type": "object", "minProperties": 2},
            "minProperties with undeclared keys that may run out": {
                "patternProperties": {"^[0-9]{1,4}$": {}},
                "additionalProperties": False,
                "minProperties": 2,
            },
        },
    ),
    Keyword(
        {"items": Children.SCHEMA | Children.ARRAY, "prefixItems": Children.ARRAY, "additionalItems": Children.SCHEMA},
        _items,
        negate=_not_items,
        evaluates=_evaluated_items,
        examples={"items, prefixItems": {"prefixItems": [{"type": "string"}], "items": {"type": "integer"}}},
    ),
    *size_keywords(
        *("Items", Array, "shortest", "longest"),
        {"minItems, maxItems": {"type": "array", "minItems": 2, "maxItems": 100_000}},
    ),
    Keyword(
        {"contains": Children.SCHEMA, "minContains": Children.NONE, "maxContains": Children.NONE},
        lambda read: _contains(read, holds=True),
        negate=lambda read: _contains(read, holds=False),
        evaluates=lambda read, _: [[Case(contained=read.or_any("contains"))]],
        examples={
            "contains": {"type": "array", "contains": {"const": 1}, "maxItems": 9},
            "several contains, or one with maxContains and maxItems": {
                "contains": {"const": 1},
                "maxContains": 2,
                "maxItems": 9,
            },
            "contains that needs more than a few hundred states": {
                "contains": {"const": 1},
                "maxContains": 60,
                "maxItems": 90,
            },
        },
    ),
    Keyword(
        {"uniqueItems": Children.NONE},
        lambda read: [Array(unique=read.schema["uniqueItems"] is True)],
        negate=_not_unique,
        examples={
            "uniqueItems of a finite set": {"items": {"enum": ["a", "b", "c"]}, "uniqueItems": True},
            "uniqueItems of strings": {"items": {"type": "string"}, "uniqueItems": True},
            "uniqueItems of strings with a pattern": {
                "items": {"type": "string", "pattern": "^[a-z]"},
                "uniqueItems": True,
            },
            "uniqueItems of strings with a format": {
                "items": {"type": "string", "format": "date"},
                "uniqueItems": True,
            },
            "uniqueItems of numbers": {"items": {"type": "number"}, "uniqueItems": True},
            "uniqueItems of objects and arrays": {"items": {"type": ["object", "array"]}, "uniqueItems": True},
        },
    ),
)
