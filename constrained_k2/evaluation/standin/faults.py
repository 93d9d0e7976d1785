"""Wrong calls among those that the stand-in learns from, so that it errs in the kinds that a schema check catches.

Numbers as strings, invented enum values, names that are nearly a declared one, required arguments left out. How often
is chosen by hand; nothing is added when it is sampled.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from constrained_k2.evaluation.standin.catalogue import Argument, Declared


@dataclass(frozen=True, slots=True)
class Faults:
    """How often each goes wrong.

    Attributes:
        number: Share of whole numbers that are written as strings.
        enum: Share of enum values that are written in the request's words, or in upper case.
        name: Share of calls to another spelling of the tool's name.
        missing: Share of calls without their last required argument.
    """

    number: float = 0.0
    enum: float = 0.0
    name: float = 0.0
    missing: float = 0.0

    def of(self, declared: Declared, arguments: Mapping[str, Any], chance: random.Random) -> tuple[str, dict[str, Any]]:
        """A call with the faults that chance gives it.

        Args:
            declared: The tool to call.
            arguments: The right ones.
            chance: Advanced.

        Returns:
            Name and arguments.
        """
        tool = declared.tool
        known = {argument.key(declared.variant): argument for argument in tool.required + tool.optional}
        found = {key: self._value(known[key], value, chance) for key, value in arguments.items()}
        if tool.required and chance.random() < self.missing:
            found.pop(tool.required[-1].key(declared.variant))
        others = [name for name in tool.names if name != declared.name]
        return chance.choice(others) if chance.random() < self.name else declared.name, found

    def _value(self, argument: Argument, value: Any, chance: random.Random) -> Any:
        if argument.schema.get("type") == "integer" and chance.random() < self.number:
            return str(value)
        if "enum" in argument.schema and chance.random() < self.enum:
            said = next(text for text, meant in argument.options["words"].items() if meant == value)
            return said if said != value else value.upper()
        return value
