"""Whether one value is of a shape: how constants and enums meet the other keywords."""

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from constrained_k2.schema.formats import patterns_of
from constrained_k2.schema.shapes import Array, Boolean, Number, Object, Shape, String, Value, kind_of, value_of

if TYPE_CHECKING:
    from constrained_k2.schema.normalize import Normalizer


def admits(normalizer: "Normalizer", shape: Shape, value: Any) -> bool:
    """Whether the value is of the shape."""
    if isinstance(shape, Value):
        return shape == value_of(value)
    if kind_of(value) != shape.kind:
        return False
    if isinstance(shape, Boolean):
        return value in shape.values
    if isinstance(shape, Number):
        return _number(shape, value)
    if isinstance(shape, String):
        return _string(normalizer, shape, value)
    if isinstance(shape, Array):
        return _array(normalizer, shape, value)
    if isinstance(shape, Object):
        return _object(normalizer, shape, value)
    return True


def _number(shape: Number, value: float) -> bool:
    exact = Fraction(str(value))
    is_integer = exact.denominator == 1
    if (shape.integer and not is_integer) or (shape.fraction and is_integer):
        return False
    if shape.low is not None and (exact < shape.low or (shape.low_open and exact == shape.low)):
        return False
    if shape.high is not None and (exact > shape.high or (shape.high_open and exact == shape.high)):
        return False
    return not shape.multiple or (exact / shape.multiple).denominator == 1


def _string(normalizer: "Normalizer", shape: String, value: str) -> bool:
    if not shape.shortest <= len(value) <= (len(value) if shape.longest is None else shape.longest):
        return False
    if value in shape.excluded:
        return False
    wanted = [*shape.patterns, *patterns_of(shape.formats)]
    return all(normalizer.matches(pattern, value) for pattern in wanted) and not any(
        normalizer.matches(pattern, value) for pattern in shape.absent
    )


def _array(normalizer: "Normalizer", shape: Array, value: list[Any]) -> bool:
    if not shape.shortest <= len(value) <= (len(value) if shape.longest is None else shape.longest):
        return False
    for position, item in enumerate(value):
        node = shape.prefix[position] if position < len(shape.prefix) else shape.rest
        if not normalizer.admits(node, item):
            return False
    for node, fewest, most in shape.contains:
        count = sum(normalizer.admits(node, item) for item in value)
        if count < fewest or (most is not None and count > most):
            return False
    return not shape.unique or len({value_of(item) for item in value}) == len(value)


def _object(normalizer: "Normalizer", shape: Object, value: dict[str, Any]) -> bool:
    if not shape.fewest <= len(value) <= (len(value) if shape.most is None else shape.most):
        return False
    if not shape.required <= value.keys():
        return False
    return all(
        normalizer.admits(shape.names, key) and normalizer.admits(normalizer.value_node(shape, key), item)
        for key, item in value.items()
    )
