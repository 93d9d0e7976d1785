"""Writes a schema's grammar; if it would be empty or cost too much, relaxes keywords and retries.

A negation may be narrowed: its grammar lacks some instances, which is harmless while others remain. If none remains,
the negations that have no exact grammar are relaxed instead. If every attempt fails, the schema is refused.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from constrained_k2.errors import SchemaTooCostly, UnsupportedSchema
from constrained_k2.schema.document import SchemaDocument
from constrained_k2.schema.normalize import Normalizer

T = TypeVar("T")
_CONDITIONS = frozenset({"not", "if", "dependencies", "dependentSchemas", "unevaluatedProperties", "unevaluatedItems"})
_CHEAPER = 3  # divides the budget of intersections of a cheaper try, made to improve a known grammar
_LEFT_OUT = (_CONDITIONS, _CONDITIONS | {"oneOf", "anyOf"})
"""Keywords to relax if a schema's alternatives cost too much: the first set, and if that is not enough the second."""


class NoInstancesError(UnsupportedSchema):
    """A grammar writer found that nothing satisfies the schema. Never leaves this package."""


def write_some(document: SchemaDocument, matches: Callable[[str, str], bool], write: Callable[[Normalizer], T]) -> T:
    """Write a schema's grammar, as exactly as the budgets allow, with at least one instance.

    Args:
        document: The schema.
        matches: As :class:`~constrained_k2.schema.normalize.Normalizer` takes it.
        write: Writes a grammar; raises :class:`NoInstancesError`.

    Raises:
        UnsupportedSchema: Nothing satisfies the schema, or no instance can be written; or ``write`` raises it.
        SchemaTooCostly: ``write`` raises it, and no cheaper try succeeds.
    """
    exact = Normalizer(document, matches)
    try:
        written = write(exact)
    except SchemaTooCostly as error:
        return _write_cheaply(document, matches, write, None if exact.met_wanting else error)
    except NoInstancesError as error:
        if not exact.notes.narrowings:
            raise _refusal(error, exact) from None
        with suppress(NoInstancesError, SchemaTooCostly):
            return write(Normalizer(document, matches, relaxes_negations=True))
        return _write_relaxed(Normalizer(document, matches, relaxes_negations=True, exact_witnesses=False), write)
    if exact.notes.relaxed_for_cost and exact.met_wanting:
        cheap = Normalizer(document, matches, exact_witnesses=False)
        cheap.notes.max_meetings //= _CHEAPER
        with suppress(UnsupportedSchema, SchemaTooCostly):
            less = write(cheap)
            return less if cheap.notes.relaxed_for_cost < exact.notes.relaxed_for_cost else written
    return written


def _write_cheaply(
    document: SchemaDocument,
    matches: Callable[[str, str], bool],
    write: Callable[[Normalizer], T],
    problem: SchemaTooCostly | None,
) -> T:
    """Write a schema that costs too much: without witnesses; if that fails, also without its alternatives.

    ``problem``: The error so far, if the schema has no witnesses to do without; else None.
    """
    try:
        if problem is None:
            return write(Normalizer(document, matches, exact_witnesses=False))
    except NoInstancesError:
        return _write_relaxed(Normalizer(document, matches, relaxes_negations=True, exact_witnesses=False), write)
    except SchemaTooCostly as error:
        problem = error
    for left_out in _LEFT_OUT:
        with suppress(SchemaTooCostly, NoInstancesError):
            return write(
                Normalizer(document, matches, relaxes_negations=True, exact_witnesses=False, left_out=left_out)
            )
    assert problem is not None
    raise problem


def _write_relaxed(normalizer: Normalizer, write: Callable[[Normalizer], T]) -> T:
    try:
        return write(normalizer)
    except NoInstancesError as error:
        raise _refusal(error, normalizer) from None


def _refusal(error: NoInstancesError, normalizer: Normalizer) -> UnsupportedSchema:
    problem = (
        "no value of this schema can be written" if normalizer.notes.narrowings else "no value satisfies this schema"
    )
    return UnsupportedSchema(problem, error.location, error.remedy, error.keyword)
