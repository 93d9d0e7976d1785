"""The setting ``undeclared_keys``: allows or forbids undeclared keys in objects with ``properties``.

JSON Schema allows such keys. If ``additionalProperties``, ``patternProperties``, ``unevaluatedProperties`` or
``propertyNames`` says which other keys are allowed, the setting has no effect on that object. Shapes are narrowed after
the intersection of all subschemas, so that the branches of an ``allOf`` do not forbid each other's keys. Each
alternative of an ``anyOf`` or ``oneOf`` declares its own keys.

An object with ``"properties": {}`` declares no key and stays open. At the root of a tool's schema, however, it means
that the tool has no parameters: with "forbid", only ``{}`` can be written.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, get_args

from constrained_k2.errors import InvalidRequest, excerpt
from constrained_k2.schema.shapes import ANY, NEVER, KeyMap, Object, Shape

UndeclaredKeys = Literal["allow", "forbid"]
UNDECLARED_KEYS: tuple[UndeclaredKeys, ...] = get_args(UndeclaredKeys)
DEFAULT: UndeclaredKeys = "forbid"
EXPECTED = " or ".join(map(repr, UNDECLARED_KEYS))
_WITHOUT_KEYS = {"type", "properties", "required", "title", "description", "$schema", "$id", "$comment"}
REASON = "keys that the schema does not declare are not written"


def read_undeclared_keys(value: object, location: str = "undeclared_keys") -> UndeclaredKeys:
    """The setting with this value; raises InvalidRequest for any other value."""
    for known in UNDECLARED_KEYS:
        if value == known:
            return known
    raise InvalidRequest(f"must be {EXPECTED}, not {excerpt(value)}", location)


def takes_no_arguments(schema: Mapping[str, Any]) -> bool:
    """True if a tool's schema declares ``"properties": {}``, and has no keyword that could allow other keys."""
    return schema.get("properties") == {} and not schema.get("required") and schema.keys() <= _WITHOUT_KEYS


def with_declared_keys(shape: Shape) -> Shape:
    """The objects of a shape that have only declared keys.

    Objects without ``properties`` are unchanged, and so are objects for which ``additionalProperties``,
    ``patternProperties``, ``unevaluatedProperties`` or ``propertyNames`` says which other keys are allowed.
    """
    if not isinstance(shape, Object) or not shape.declared.has_properties or shape.declared.rules_others:
        return shape
    names = shape.declared.names
    ordered = [name for name in shape.in_order() if name in names]
    ordered += sorted(names.difference(ordered))
    return replace(shape, maps=shape.maps | {KeyMap(tuple((name, ANY) for name in ordered), extra=NEVER)})


def requires_undeclared(shape: Shape) -> bool:
    """True if an object requires a key that no schema declares, as the negation of a subschema may."""
    return isinstance(shape, Object) and (not shape.required <= shape.declared.names or bool(shape.wanted))
