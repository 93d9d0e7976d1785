"""``unevaluatedProperties`` and ``unevaluatedItems``: what the keywords beside them have looked at, case by case.

A case assumes that some branches hold (of an ``anyOf``, say) and knows what they look at. Where a branch holds that a
case does not assume, the case is merely stricter than it need be, so no case needs to assume that a branch fails; but
``else``, and a dependency's absence, look at something because something else does not hold.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

from constrained_k2.schema.keywords import Undecided, without_key
from constrained_k2.schema.reader import Reader, at
from constrained_k2.schema.shapes import ANY, EVERYTHING, Array, KeyMap, Node, Object, Shape

if TYPE_CHECKING:
    from constrained_k2.schema.normalize import Normalizer, Shapes

_MOST_CASES = 64
_MOST_BRANCHES = 5  # of an anyOf, all of whose subsets are cases
_DEEPEST = 32


@dataclass(frozen=True, slots=True)
class Case:
    """What is looked at where some subschemas hold.

    Attributes:
        node: The subschemas that are assumed to hold (or not).
        names: Property names.
        patterns: Patterns of property names.
        prefix: How many items from the first.
        contained: Subschemas of items that ``contains`` looks at.
        all_properties: Whether all properties are.
        all_items: Whether all items are.
    """

    node: Node = ANY
    names: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()
    prefix: int = 0
    contained: Node = ANY
    all_properties: bool = False
    all_items: bool = False

    def __or__(self, other: "Case") -> "Case":
        """Both cases at once."""
        return Case(
            self.node | other.node,
            self.names | other.names,
            self.patterns | other.patterns,
            max(self.prefix, other.prefix),
            self.contained | other.contained,
            self.all_properties or other.all_properties,
            self.all_items or other.all_items,
        )


def unevaluated(n: "Normalizer", schema: dict[str, Any], pointer: str, keyword: str) -> "Shapes":
    """The shapes that an ``unevaluatedProperties`` or ``unevaluatedItems`` leaves.

    Raises:
        Undecided: There are too many cases.
    """
    rest = {name: value for name, value in schema.items() if name not in {"unevaluatedProperties", "unevaluatedItems"}}
    unions = []
    for case in dict.fromkeys(_cases(n, rest, pointer, 0)):
        bound: Shape
        if keyword == "unevaluatedProperties":
            named = tuple((name, ANY) for name in sorted(case.names))
            patterns = tuple((pattern, ANY) for pattern in sorted(case.patterns))
            bound = Object(maps=frozenset({KeyMap(named, patterns, at(pointer, keyword))}))
            is_free = case.all_properties
        else:
            ways = [at(pointer, keyword), *(frozenset({literal}) for literal in sorted(case.contained))]
            bound = Array((ANY,) * case.prefix, n.any_of(tuple(ways)) if len(ways) > 1 else ways[0])
            is_free = case.all_items
        shapes = EVERYTHING if is_free else tuple(bound if shape.kind == bound.kind else shape for shape in EVERYTHING)
        unions.append(n.both(n.shapes(case.node), shapes))
    return n.either(*unions)


def _cases(n: "Normalizer", schema: Any, pointer: str, depth: int) -> list[Case]:
    """The cases of a subschema that holds."""
    if not isinstance(schema, dict):
        return [Case()]
    if depth > _DEEPEST:
        raise Undecided("what counts as evaluated leads too deep")
    found = [_own(n, schema, pointer)]
    for ways in _choices(n, schema, pointer, depth):
        found = list(dict.fromkeys(one | other for one in found for other in ways))
        if len(found) > _MOST_CASES:
            raise Undecided(f"there are more than {_MOST_CASES} cases of what counts as evaluated")
    return found


def _own(n: "Normalizer", schema: dict[str, Any], pointer: str) -> Case:
    """What the keywords of one schema look at themselves."""
    read = Reader(n, schema, pointer)
    prefix, _ = read.items()
    if any(read.pattern_problem(pattern, "patternProperties") for pattern in read.object("patternProperties")):
        raise Undecided("a pattern beside it cannot be matched")
    has_old_items = isinstance(schema.get("items"), list)
    return Case(
        names=frozenset(read.object("properties")),
        patterns=frozenset(read.object("patternProperties")),
        prefix=len(prefix),
        contained=at(pointer, "contains") if "contains" in schema else ANY,
        all_properties="additionalProperties" in schema or "unevaluatedProperties" in schema,
        all_items=("additionalItems" if has_old_items else "items") in schema or "unevaluatedItems" in schema,
    )


def _choices(  # noqa: PLR0912 - a branch a keyword
    n: "Normalizer", schema: dict[str, Any], pointer: str, depth: int
) -> Iterator[list[Case]]:
    """For each keyword that applies subschemas in place, its cases."""
    read = Reader(n, schema, pointer)

    def below(*path: str | int) -> list[Case]:
        node = at(pointer, *path)
        ((target, _),) = node
        return [replace(case, node=case.node | node) for case in _cases(n, n.document.at(target), target, depth + 1)]

    for keyword in ("$ref", "$dynamicRef"):
        if keyword in schema:
            target = n.document.resolve(schema[keyword], pointer)
            if keyword == "$dynamicRef":
                target = n.document.resolve_dynamic(schema[keyword], pointer) or target
            yield _cases(n, n.document.at(target), target, depth + 1)
    if "allOf" in schema:
        for number in range(len(read.list("allOf"))):
            yield below("allOf", number)
    if "anyOf" in schema:
        yield list(_subsets([below("anyOf", number) for number in range(len(read.list("anyOf")))]))
    if "oneOf" in schema:
        yield [case for number in range(len(read.list("oneOf"))) for case in below("oneOf", number)]
    if "if" in schema:
        otherwise = at(pointer, "if", holds=False)
        holds, fails = below("if"), [Case(otherwise)]
        if "then" in schema:
            holds = [one | other for one in holds for other in below("then")]
        if "else" in schema:
            fails = [one | other for one in fails for other in below("else")]
        yield [*holds, *fails]
    for keyword in ("dependentSchemas", "dependencies"):
        for key, value in read.object(keyword).items():
            if isinstance(value, dict):
                present = n.any_shapes((Object(required=frozenset({key})),))
                absent = n.any_shapes((*(shape for shape in EVERYTHING if shape.kind != "object"), without_key(key)))
                yield [Case(absent), *(replace(case, node=case.node | present) for case in below(keyword, key))]


def _subsets(branches: list[list[Case]]) -> Iterator[Case]:
    """The cases of an ``anyOf``: any of its branches may hold, and several of them."""
    if len(branches) > _MOST_BRANCHES:
        raise Undecided(f"more than {_MOST_BRANCHES} branches that may hold together")
    for size in range(1, len(branches) + 1):
        for chosen in combinations(branches, size):
            found = [Case()]
            for cases in chosen:
                found = [one | other for one in found for other in cases]
            yield from found
