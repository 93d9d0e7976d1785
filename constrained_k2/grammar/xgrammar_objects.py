"""Objects for xgrammar: the declared properties in the schema's order, then any other keys."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from constrained_k2.grammar.patterns import Untranslatable
from constrained_k2.grammar.xgrammar_strings import ANY_STRING, found, one_of, other_keys
from constrained_k2.schema.shapes import ANY, Node, Object, String, Value

if TYPE_CHECKING:
    from constrained_k2.grammar.xgrammar_schema import XGrammarWriter

_COUNTS = frozenset({"minProperties", "maxProperties"})
_DECLARING = frozenset({"properties", "required", "additionalProperties", "dependentRequired"})
_OPEN = frozenset({"patternProperties", "additionalProperties"})


def object_schema(writer: "XGrammarWriter", node: Node, shape: Object) -> dict[str, Any]:
    """The schema of an object's shape."""
    possible = set(writer.reach.possible_keys(shape))
    names = _declared(shape)
    keys = [name for name in names if name in possible]
    if any("\x7f" in name for name in keys):
        writer.note(node, frozenset({"properties", "required"}), "relaxed", "a key with U+007F may come twice")
    extras = dict(_extras(writer, node, shape, names))
    schema: dict[str, Any] = {"type": "object"}
    if keys:
        schema["properties"] = {name: writer.ref(writer.normalizer.value_node(shape, name)) for name in keys}
    if shape.required:
        schema["required"] = [name for name in keys if name in shape.required]
    if extras:
        schema["patternProperties"] = {expression: writer.ref(value) for expression, value in extras.items()}
    schema["additionalProperties"] = False
    if shape.fewest > len(shape.required):
        schema["minProperties"] = shape.fewest
        if extras and shape.fewest > 1:
            writer.note(node, _COUNTS, "relaxed", "one key written twice counts as two")
    if shape.most is not None:
        schema["maxProperties"] = shape.most
    return schema


def _declared(shape: Object) -> list[str]:
    """The keys that a shape speaks of by name, in the order of the schema (and of its parts by their place)."""
    maps = sorted(shape.maps, key=lambda rules: [sorted(value) for _, value in rules.named])
    return list(dict.fromkeys([name for rules in maps for name, _ in rules.named] + sorted(shape.required)))


def _extras(writer: "XGrammarWriter", node: Node, shape: Object, names: list[str]) -> Iterator[tuple[str, Node]]:
    """Expressions for keys that are not declared, each with the node of its values."""
    values = dict(writer.reach.extra_nodes(shape))
    if len(values) == 1:
        if writer.reach.is_productive(values[()]):
            yield from ((expression, values[()]) for expression in _names(writer, node, shape, names))
        return
    if shape.names != ANY:
        writer.note(node, frozenset({"propertyNames"}), "relaxed", "names beside patternProperties are not kept")
    if writer.reach.is_productive(values[()]):
        if any(value != values[()] for value in values.values()):
            writer.note(node, _OPEN, "relaxed", "a key of the pattern may be written as one that is not")
        yield _open_key(writer, node, names), values[()]
    for which, value in values.items():
        if len(which) > 1 and any(value != values[pattern,] for pattern in which):
            writer.note(node, _OPEN, "relaxed", "a key in which several patterns are found is held to one of them")
        if len(which) != 1 or not writer.reach.is_productive(value):
            continue
        try:
            expression = found(which[0])
        except Untranslatable as error:
            writer.note(node, _OPEN, "narrowed", f"keys of the pattern are not written: {error}")
            continue
        if any(_leaks(writer, shape, name, which[0], value) for name in names):
            writer.note(
                node, _OPEN | {"properties", "required"}, "relaxed", "a declared key may come again by its pattern"
            )
        yield expression, value


def _leaks(writer: "XGrammarWriter", shape: Object, name: str, pattern: str, value: Node) -> bool:
    """Whether a declared key could be written again with a value that it must not have."""
    return writer.normalizer.matches(pattern, name) and not writer.normalizer.value_node(shape, name) <= value


def _open_key(writer: "XGrammarWriter", node: Node, names: list[str]) -> str:
    if not any(names):
        return other_keys(names) if names else ANY_STRING
    writer.note(
        node,
        _DECLARING,
        "narrowed",
        "other keys are written only where no declared one begins with the same character",
    )
    return other_keys(names)


def _names(writer: "XGrammarWriter", node: Node, shape: Object, names: list[str]) -> Iterator[str]:
    """Expressions for the keys that are not declared, by what ``propertyNames`` leaves of them."""
    if shape.names == ANY:
        yield _open_key(writer, node, names)
        return
    declared = frozenset(names)
    listed: list[str] = []
    for name in writer.normalizer.shapes(shape.names):
        if isinstance(name, Value) and isinstance(name.value, str):
            listed.append(name.value)
        elif isinstance(name, String):
            yield writer.string(shape.names | node, replace(name, excluded=name.excluded | declared))
    if others := set(listed) - declared:
        yield one_of(others)
