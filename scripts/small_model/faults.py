"""Adds wrong calls to the training data, so that the small model makes mistakes that a schema check catches.

Numbers as strings, invented enum values, names similar to a declared one, missing required arguments. The frequencies
are set by hand; sampling adds no further mistakes.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scripts.small_model.catalogue import Argument, Declared


@dataclass(frozen=True, slots=True)
class Faults:
    """Frequencies of faults."""

    number: float = 0.0  # of integers that are written as strings
    enum: float = 0.0  # of enum values in the request's words or in upper case
    name: float = 0.0  # of calls with another variant of the tool's name
    missing: float = 0.0  # of calls without their last required argument

    def of(self, declared: Declared, arguments: Mapping[str, Any], chance: random.Random) -> tuple[str, dict[str, Any]]:
        """Return the name and arguments of a call of a declared tool, with random faults."""
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
