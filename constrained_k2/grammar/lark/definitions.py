"""Deduplicates a grammar's terminals and alternations: equal bodies share a name and definition."""


class Definitions:
    """Named terminals and choices, in the order in which they are first used."""

    def __init__(self) -> None:
        self._terminals: dict[str, str] = {}
        self._choices: dict[str, str] = {}

    def terminal(self, expression: str) -> str:
        """Return the name of the terminal with a given body."""
        return self._terminals.setdefault(expression, f"T{len(self._terminals)}")

    def choice(self, alternatives: list[str]) -> str:
        """Return the name of a rule with the given alternatives."""
        return self._choices.setdefault(" | ".join(alternatives), f"a{len(self._choices)}")

    def lines(self) -> list[str]:
        """Return the definitions, the choices first."""
        return [f"{name}: {text}" for known in (self._choices, self._terminals) for text, name in known.items()]
