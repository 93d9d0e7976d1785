"""Implements keywords that apply subschemas to the instance itself, such as $ref, oneOf, not and if."""

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from itertools import chain, combinations, product
from operator import or_
from typing import Any

from constrained_k2.errors import SchemaTooCostly
from constrained_k2.schema.keywords.keyword import Case, CasesOf, Children, Keyword, NotExpressible, Reader
from constrained_k2.schema.kinds import possible_kinds
from constrained_k2.schema.shapes import ANY, EVERYTHING, Declared, Kind, Node, Object, Shapes, negated, without_key

_MAX_BRANCHES = 5  # max branches of an anyOf beside unevaluated*: each subset of branches is a case


def _under(cases: CasesOf, node: Node) -> list[Case]:
    """The cases of one subschema, each with the assumption that the subschema holds."""
    ((pointer, _),) = node
    return [replace(case, node=case.node | node) for case in cases(pointer)]


def _target(read: Reader) -> str:
    return read.normalizer.document.resolve(read.schema["$ref"], read.pointer)


def _dynamic_target(read: Reader) -> str | None:
    return read.normalizer.document.resolve_dynamic(read.schema["$dynamicRef"], read.pointer)


def _dynamic_ref(read: Reader) -> Shapes:
    target = _dynamic_target(read)
    return _path_dependent(read) if target is None else read.normalizer.shapes(frozenset({(target, True)}))


def _path_dependent(_: Reader) -> Shapes:
    raise NotExpressible("its target depends on the path taken")


def _evaluated_by_dynamic_ref(read: Reader, cases: CasesOf) -> Iterator[list[Case]]:
    yield cases(_dynamic_target(read) or read.normalizer.document.resolve(read.schema["$dynamicRef"], read.pointer))


def _evaluated_by_any_of(read: Reader, cases: CasesOf) -> Iterator[list[Case]]:
    """Several branches may hold: one case for each combination of cases of each subset of branches."""
    branches = [_under(cases, node) for node in read.branches("anyOf")]
    if len(branches) > _MAX_BRANCHES:
        raise NotExpressible(f"more than {_MAX_BRANCHES} branches may hold together")
    subsets = chain.from_iterable(combinations(branches, size) for size in range(1, len(branches) + 1))
    yield [reduce(or_, together) for subset in subsets for together in product(*subset)]


def _exactly_one(read: Reader) -> Shapes:
    branches = read.branches("oneOf")
    if read.normalizer.left_out:
        read.note("oneOf", "relaxed", "several branches may hold at once: the schema's alternatives cost too much")
        return read.any_of(branches)
    kinds = [possible_kinds(read.normalizer.document, pointer) for ((pointer, _),) in branches]
    try:
        return read.any_of(_alone(read, branches, kinds, number) for number in range(len(branches)))
    except SchemaTooCostly as error:
        read.relax_for(error, "oneOf", "several branches may hold at once: ")
        return read.any_of(branches)


def _alone(read: Reader, branches: list[Node], kinds: list[frozenset[Kind]], number: int) -> Node:
    """The node of one branch, with the negation of every other branch that may hold at the same time."""
    n, node = read.normalizer, branches[number]
    for other, rival in enumerate(branches):
        if other == number or kinds[other].isdisjoint(kinds[number]):
            continue
        before = n.notes.narrowings
        # Disjoint shapes prove nothing if they were narrowed, since they lack instances then.
        if n.both(n.shapes(branches[number]), n.shapes(rival)) or n.notes.narrowings > before:
            node |= negated(rival)
    return node


def _none_or_two(read: Reader) -> Shapes:
    none: Node = frozenset().union(*read.branches("oneOf", holds=False))
    return read.any_of([none, *(one | other for one, other in combinations(read.branches("oneOf"), 2))])


def _conditional(read: Reader, *, holds: bool) -> Shapes:
    """``if``, ``then`` and ``else`` together, or their negation."""
    if "if" not in read.schema:
        return EVERYTHING if holds else ()
    nodes = [
        read.at("if", holds=condition) | (read.at(branch, holds=holds) if branch in read.schema else ANY)
        for branch, condition in (("then", True), ("else", False))
        if holds or branch in read.schema
    ]
    return read.any_of(nodes)


def _evaluated_by_if(read: Reader, cases: CasesOf) -> Iterator[list[Case]]:
    if "if" in read.schema:
        alternatives = ("then", _under(cases, read.at("if"))), ("else", [Case(read.at("if", holds=False))])
        below = {name: _under(cases, read.at(name)) if name in read.schema else [Case()] for name, _ in alternatives}
        yield [one | other for name, conditions in alternatives for one in conditions for other in below[name]]


def _absent(key: str, declared: Declared = Declared()) -> Shapes:  # noqa: B008 - frozen
    return (*(shape for shape in EVERYTHING if shape.kind != "object"), replace(without_key(key), declared=declared))


def _present(*keys: str, declared: Declared = Declared()) -> Shapes:  # noqa: B008 - frozen
    return (Object(required=frozenset(keys), declared=declared),)


def _dependency(keyword: str, children: Children, examples: dict[str, dict[str, Any]] | None = None) -> Keyword:
    """The row of ``dependentRequired``, ``dependentSchemas``, or ``dependencies`` (the older form of both)."""

    def holds(read: Reader) -> Shapes:
        n, found = read.normalizer, EVERYTHING
        for key, value in read.dependencies(keyword):
            needed = (key, *value) if isinstance(value, list) else (key,)
            declared = Declared(frozenset(needed))
            below = EVERYTHING if isinstance(value, list) else n.shapes(read.at(keyword, key))
            found = n.both(found, n.either(_absent(key, declared), n.both(_present(*needed, declared=declared), below)))
        return found

    def negate(read: Reader) -> Shapes:
        n, unions = read.normalizer, list[Shapes]()
        for key, value in read.dependencies(keyword):
            if isinstance(value, list):
                unions += [n.both(_present(key), (without_key(needed),)) for needed in value]
            else:
                unions.append(n.both(_present(key), n.shapes(read.at(keyword, key, holds=False))))
        return n.either(*unions)

    def evaluates(read: Reader, cases: CasesOf) -> Iterator[list[Case]]:
        for key, value in read.object(keyword).items():
            if isinstance(value, dict):
                present, absent = map(read.normalizer.shapes_node, (_present(key), _absent(key)))
                below = _under(cases, read.at(keyword, key))
                yield [Case(absent), *(replace(case, node=case.node | present) for case in below)]

    in_place = children is not Children.NONE
    return Keyword({keyword: children}, None, holds, negate, evaluates if in_place else None, in_place, examples or {})


KEYWORDS = (
    Keyword(
        {"$ref": Children.REFERENCE},
        holds=lambda read: read.all_of([frozenset({(_target(read), True)})]),
        negate=lambda read: read.all_of([frozenset({(_target(read), False)})]),
        evaluates=lambda read, cases: [cases(_target(read))],
        in_place=True,
        examples={
            "$ref, $defs, recursion": {
                "$defs": {"n": {"properties": {"next": {"$ref": "#/$defs/n"}}}},
                "$ref": "#/$defs/n",
            },
            "$ref that leaves the schema": {"$ref": "https://example.com/schema.json"},
        },
    ),
    Keyword(
        {"$dynamicRef": Children.REFERENCE},
        holds=_dynamic_ref,
        evaluates=_evaluated_by_dynamic_ref,
        in_place=True,
        examples={"$dynamicRef": {"$dynamicAnchor": "n", "properties": {"next": {"$dynamicRef": "#n"}}}},
    ),
    Keyword({"$recursiveRef": Children.NONE}, holds=_path_dependent),
    Keyword(
        {"allOf": Children.ARRAY},
        holds=lambda read: read.all_of(read.branches("allOf")),
        negate=lambda read: read.any_of(read.branches("allOf", holds=False)),
        evaluates=lambda read, cases: [_under(cases, node) for node in read.branches("allOf")],
        in_place=True,
        examples={"allOf": {"allOf": [{"required": ["a"]}, {"properties": {"a": {"maxLength": 3}}}]}},
    ),
    Keyword(
        {"anyOf": Children.ARRAY},
        holds=lambda read: read.any_of(read.branches("anyOf")),
        negate=lambda read: read.all_of(read.branches("anyOf", holds=False)),
        evaluates=_evaluated_by_any_of,
        in_place=True,
        examples={"anyOf": {"anyOf": [{"type": "string"}, {"required": ["a"]}], "minLength": 2}},
    ),
    Keyword(
        {"oneOf": Children.ARRAY},
        holds=_exactly_one,
        negate=_none_or_two,
        evaluates=lambda read, cases: [[case for node in read.branches("oneOf") for case in _under(cases, node)]],
        in_place=True,
        examples={"oneOf": {"oneOf": [{"properties": {"k": {"const": 1}}, "required": ["k"]}, {"required": ["m"]}]}},
    ),
    Keyword(
        {"not": Children.SCHEMA},
        holds=lambda read: read.all_of([read.at("not", holds=False)]),
        negate=lambda read: read.all_of([read.at("not")]),
        in_place=True,
        examples={"not": {"not": {"anyOf": [{"type": "null"}, {"const": "a"}, {"required": ["b"]}]}}},
    ),
    Keyword(
        {"if": Children.SCHEMA, "then": Children.SCHEMA, "else": Children.SCHEMA},
        holds=lambda read: _conditional(read, holds=True),
        negate=lambda read: _conditional(read, holds=False),
        evaluates=_evaluated_by_if,
        in_place=True,
        examples={
            "if, then, else": {
                "if": {"properties": {"k": {"const": 1}}},
                "then": {"required": ["a"]},
                "else": {"required": ["b"]},
            }
        },
    ),
    _dependency(
        "dependentRequired",
        Children.NONE,
        {
            "dependentRequired, dependentSchemas": {
                "dependentRequired": {"a": ["b"]},
                "dependentSchemas": {"c": {"required": ["d"]}},
            }
        },
    ),
    _dependency("dependentSchemas", Children.MAP),
    _dependency("dependencies", Children.MAP),
)
