"""Schemas that seem to have no instances: the claim is made only where nothing was left out on the way to it.

The grammar of a negation may lack instances ("narrowed"), which is harmless while others remain. Where none remain, the
negations that have no exact grammar are relaxed instead.
"""

from collections.abc import Callable
from typing import TypeVar

from constrained_k2.errors import UnsupportedSchema
from constrained_k2.schema.document import SchemaDocument
from constrained_k2.schema.normalize import Normalizer

T = TypeVar("T")


class NoInstancesError(UnsupportedSchema):
    """A writer found no instance. Never leaves this package."""


def write_some(document: SchemaDocument, matches: Callable[[str, str], bool], write: Callable[[Normalizer], T]) -> T:
    """Write a schema that may seem to have no instances.

    Args:
        document: The schema.
        matches: As :class:`~constrained_k2.schema.normalize.Normalizer` takes it.
        write: Writes a grammar; raises :class:`NoInstancesError`.

    Raises:
        UnsupportedSchema: The schema has no instances, or none that can be written; or as ``write`` raises.
        SchemaTooCostly: As ``write`` raises.
    """
    normalizer = Normalizer(document, matches)
    try:
        return write(normalizer)
    except NoInstancesError as error:
        found = error
    if normalizer.narrowings:
        normalizer = Normalizer(document, matches, relaxes_negations=True)
        try:
            return write(normalizer)
        except NoInstancesError as error:
            found = error
    problem = "no value of this schema can be written" if normalizer.narrowings else "no value satisfies this schema"
    raise UnsupportedSchema(problem, found.location, found.remedy, found.keyword)
