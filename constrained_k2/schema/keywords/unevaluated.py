"""Implements unevaluatedProperties and unevaluatedItems: one shape per set of subschemas that hold.

Such an alternative, a case, assumes that some branches (of an ``anyOf``, say) hold, and lists the properties and items
that they evaluate. If more branches hold, the case is only stricter than necessary. So a case need not assume that the
other branches fail; only ``else`` and the dependencies of absent keys assume that something fails.
"""

from typing import Any

from constrained_k2.schema.keywords.keyword import Case, Children, Expander, Keyword, NotExpressible, Reader
from constrained_k2.schema.shapes import ANY, EVERYTHING, Array, Declared, KeyMap, Object, Shapes

_MAX_CASES = 64
_MAX_DEPTH = 32
_NAMES = ("unevaluatedProperties", "unevaluatedItems")


def with_unevaluated(others: tuple[Keyword, ...]) -> tuple[Keyword, ...]:
    """The given rows of other keywords, plus the rows of ``unevaluatedProperties`` and ``unevaluatedItems``."""
    rows: list[Keyword] = [*others]

    def row(keyword: str, case: Case, example: dict[str, Any]) -> Keyword:
        bound = Object(declared=Declared(rules_others=True)) if case.all_properties else Array()
        return Keyword(
            {keyword: Children.SCHEMA},
            bounds=lambda _: [bound],
            holds=lambda read: _unevaluated(read, rows, keyword),
            evaluates=lambda _, __: [[case]],
            examples={keyword: {**example, keyword: False}},
        )

    branches: dict[str, Any] = {"anyOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}
    rows.append(row("unevaluatedProperties", Case(all_properties=True), branches))
    items = {"prefixItems": [{}], "contains": {"type": "string"}}
    rows.append(row("unevaluatedItems", Case(all_items=True), items))
    return tuple(rows)


def _unevaluated(read: Reader, rows: list[Keyword], keyword: str) -> Shapes:
    if read.schema[keyword] in (True, {}):
        return EVERYTHING
    n, rest, unions = read.normalizer, read.at(keyword), list[Shapes]()
    others = {name: value for name, value in read.schema.items() if name not in _NAMES}
    bound: Object | Array
    for case in dict.fromkeys(_cases(n, rows, others, read.pointer)):
        if keyword == "unevaluatedProperties":
            named, patterns = (tuple((name, ANY) for name in sorted(names)) for names in (case.names, case.patterns))
            is_free, bound = case.all_properties, Object(maps=frozenset({KeyMap(named, patterns, rest)}))
        else:
            alternatives = (rest, *(frozenset({literal}) for literal in sorted(case.contained)))
            is_free, bound = (
                case.all_items,
                Array((ANY,) * case.prefix, n.any_node(alternatives) if len(alternatives) > 1 else rest),
            )
        shapes = EVERYTHING if is_free else tuple(bound if shape.kind == bound.kind else shape for shape in EVERYTHING)
        unions.append(n.both(n.shapes(case.node), shapes))
    return n.either(*unions)


def _cases(n: Expander, rows: list[Keyword], schema: Any, pointer: str, depth: int = 0) -> list[Case]:
    """The cases of a subschema that holds, as the rows of its keywords yield them."""
    if depth > _MAX_DEPTH:
        raise NotExpressible(f"what counts as evaluated is nested deeper than {_MAX_DEPTH} subschemas")

    def below(target: str) -> list[Case]:
        return _cases(n, rows, n.document.at(target), target, depth + 1)

    found = [Case()]
    for row in rows if isinstance(schema, dict) else ():
        if row.evaluates is None or row.names.keys().isdisjoint(schema):
            continue
        for alternatives in row.evaluates(Reader(n, schema, pointer), below):
            found = list(dict.fromkeys(one | other for one in found for other in alternatives))
            if len(found) > _MAX_CASES:
                raise NotExpressible(f"there are more than {_MAX_CASES} cases of what counts as evaluated")
    return found
