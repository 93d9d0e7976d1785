"""Builds the Lark terminal of undeclared keys that match the given patterns but no other pattern."""

from collections.abc import Callable
from typing import NamedTuple

from constrained_k2.grammar.plan.expressions import one_of
from constrained_k2.grammar.plan.leaves import is_endless, is_long, string_expression
from constrained_k2.grammar.plan.nodes import Wider
from constrained_k2.grammar.productivity import patterns_of_keys
from constrained_k2.grammar.spelling import JSON, Spelling
from constrained_k2.schema.normalize import Normalizer
from constrained_k2.schema.shapes import ANY, EVERYTHING, ListedValue, Object, String, meet


class Keys(NamedTuple):
    """Undeclared keys as a terminal.

    Attributes:
        expression: The terminal's body; empty if there are no such keys.
        is_long: True if a long text may be forced.
        listed: The keys that ``propertyNames`` lists.
    """

    expression: str
    is_long: bool
    listed: tuple[str, ...]


def has_keys(
    normalizer: Normalizer, has_match: Callable[[str], bool], shape: Object, found: tuple[str, ...], named: list[str]
) -> bool:
    """Return True if a shape allows unnamed keys that match the key patterns ``found`` and none of its others."""
    keys = undeclared_keys(normalizer, has_match, shape, found, named)
    return isinstance(keys, Wider) or bool(keys.expression)


def undeclared_keys(  # noqa: PLR0913, PLR0917 - what the keys depend on
    normalizer: Normalizer,
    has_match: Callable[[str], bool],
    shape: Object,
    found: tuple[str, ...],
    named: list[str],
    form: Spelling = JSON,
) -> Keys | Wider:
    """Return the unnamed keys that a shape allows and that match the key patterns ``found`` and none of its others."""
    patterns = patterns_of_keys(shape)
    absent = frozenset(patterns).difference(found)
    keys = String(patterns=frozenset(found), absent=absent, excluded=frozenset(named))
    allowed = EVERYTHING if shape.names == ANY else normalizer.shapes(shape.names)
    met = [meet(keys, name) for name in allowed if isinstance(name, String)]
    strings = [each for each in met if isinstance(each, String)]
    alternatives, matches = list[str](), normalizer.matches
    for each in strings:
        expression = string_expression(each, form)
        if isinstance(expression, Wider):
            return expression
        alternatives.append(expression)
    values = [each.value for each in allowed if isinstance(each, ListedValue)]
    texts = [value for value in values if isinstance(value, str) and value not in named]
    listed = [text for text in texts if tuple(pattern for pattern in patterns if matches(pattern, text)) == found]
    alternatives += [one_of(sorted(listed), form)] if listed else []
    expression = " | ".join(alternatives)
    is_some = any(map(is_endless, strings)) or (bool(alternatives) and has_match(expression))
    return Keys(expression if is_some else "", any(map(is_long, strings)), tuple(listed))
