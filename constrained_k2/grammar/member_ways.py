"""One alternative for an object member: its value's node, its key and the witnesses that it satisfies."""

from dataclasses import dataclass

from constrained_k2.schema.shapes import Node, Wanted


@dataclass(frozen=True, slots=True)
class MemberWay:
    """One alternative for an object member."""

    node: Node  # of its value
    names: Node  # of its key, if that is not declared
    satisfied: frozenset[Wanted] = frozenset()  # the witnesses that it satisfies
