"""The ways to write an object's members."""

from dataclasses import dataclass

from constrained_k2.schema.shapes import Node, Wanted


@dataclass(frozen=True, slots=True)
class MemberWay:
    """One way to write an object's member."""

    node: Node  # of its value
    names: Node  # of its key, if that is not declared
    satisfied: frozenset[Wanted] = frozenset()  # the wanted members that it is
