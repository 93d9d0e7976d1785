"""Names the Lark rule of each grammar node, and collects the helper rules of objects and arrays."""

from constrained_k2.grammar.lark.definitions import Definitions
from constrained_k2.grammar.lark.leaves import leaf_body
from constrained_k2.grammar.plan.nodes import ANY_VALUE, CONTAINERS, Leaf, Plan


class Rules(Definitions):
    """The names of a plan's rules, given at the first reference, and the helper rules of its objects and arrays."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan
        self.names: dict[int, str] = {}
        self.waiting: list[int] = []  # nodes that have a name, and no rule yet
        self.helpers: list[str] = []

    def rule(self, number: int) -> str:
        """Return the name of a node's rule or terminal; equal nodes without objects and arrays share a name."""
        if number == ANY_VALUE:
            return "any"
        if number not in self.names:
            self.names[number] = self._leaf(number) or f"n{len(self.names)}"
        return self.names[number]

    def leaf(self, number: int, leaf: Leaf) -> str:
        """Return the rule body of an alternative of a node; empty if the terminal of the node's strings includes it."""
        return leaf_body(self, self.plan.nodes[number], leaf, signs_apart=self.plan.signs_apart)

    def union(self, number: int, alternatives: list[str]) -> str:
        """Return the body of a node's rule: ``alternatives`` and the terminal of the node's joined strings."""
        strings = self.plan.nodes[number].strings
        return " | ".join([*dict.fromkeys(filter(None, alternatives)), *([self.terminal(strings)] if strings else [])])

    def _leaf(self, number: int) -> str:
        """Return the name of a rule or terminal; empty for a node with objects or arrays, whose rule is added later."""
        leaves = list[Leaf]()
        for one in self.plan.nodes[number].alternatives:
            if isinstance(one, CONTAINERS):
                self.waiting.append(number)
                return ""
            leaves.append(one)
        body = self.union(number, [self.leaf(number, one) for one in leaves])
        return body if body.isidentifier() else self.choice([body])
