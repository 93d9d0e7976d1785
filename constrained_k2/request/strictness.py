"""Decides how strictly a tool's schema is enforced, from its ``strict`` flag and the server's bounds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from constrained_k2.errors import InvalidRequest, excerpt, kind_of_json

Level = Literal["json_object", "best_effort", "strict"]
"""``json_object``: any JSON object is allowed. ``best_effort``: what can be enforced is, the rest is relaxed and
reported. ``strict``: everything is enforced, or the request is refused."""

LEVELS: tuple[Level, ...] = get_args(Level)
StrictFalse = Literal["json_object", "best_effort"]
"""The level that ``strict: false`` declares."""

STRICT_FALSE: tuple[StrictFalse, ...] = get_args(StrictFalse)
_FIELDS = {"min": "min", "max": "max", "false": "strict_false"}
_EXPECTED = f"Use {', '.join(map(repr, LEVELS))}"


@dataclass(frozen=True, slots=True)
class StrictPolicy:
    """The bounds that a server sets on its tools' ``strict``.

    ``strict: true`` gives the level ``strict``. A tool without ``strict`` gets ``best_effort`` (Moonshot's rule: a
    missing field means enforced). ``strict: false``, which frameworks send if the field is mandatory, gives the level
    ``strict_false``. ``min`` and ``max`` bound these levels. A schema without a grammar is refused if the level is
    ``strict`` or ``min`` is above ``json_object``; otherwise it becomes any JSON object.
    """

    min: Level = "json_object"
    max: Level = "strict"
    strict_false: StrictFalse = "best_effort"

    def __post_init__(self) -> None:
        for name, level in (("min", self.min), ("max", self.max)):
            if level not in LEVELS:
                raise InvalidRequest(f"unknown level {excerpt(level)}", f"strict.{name}", _EXPECTED)
        read_strict_false(self.strict_false, "strict.false")
        if LEVELS.index(self.min) > LEVELS.index(self.max):
            raise InvalidRequest(f"min {self.min!r} is above max {self.max!r}", "strict", "Swap them")

    def level(self, strict: bool | None, strict_false: StrictFalse | None = None) -> Level:  # noqa: FBT001 - as sent
        """The level for a tool with this ``strict``; ``strict_false``: the request's level for ``strict: false``."""
        declared: Level = "strict" if strict else "best_effort"
        if strict is False:
            declared = strict_false or self.strict_false
        return max(self.min, min(self.max, declared, key=LEVELS.index), key=LEVELS.index)

    def allows_any_object(self, strict: bool | None) -> bool:  # noqa: FBT001 - as sent
        """True if a tool with this ``strict`` accepts any JSON object when its schema has no grammar."""
        return self.min == "json_object" and self.level(strict) != "strict"

    @classmethod
    def from_config(cls, config: object) -> "StrictPolicy":
        """Read ``{"min": …, "max": …, "false": …}``, or one level for both bounds; None is the default."""
        if config is None:
            return cls()
        if isinstance(config, str):
            config = {"min": config, "max": config}
        if not isinstance(config, Mapping):
            problem = f"must be a level or an object of min, max and false, not {kind_of_json(config)}"
            raise InvalidRequest(problem, "strict", _EXPECTED)
        if unknown := config.keys() - _FIELDS.keys():
            problem = f"unknown field {excerpt(next(iter(unknown)))}"
            raise InvalidRequest(problem, "strict", "Use 'min', 'max' and 'false'")
        known: dict[str, Any] = {_FIELDS[name]: value for name, value in config.items()}
        if known.get("strict_false", "") is None:
            raise InvalidRequest("must be a level, not null", "strict.false", _EXPECTED)
        return cls(**known)


def read_strict_false(value: object, location: str) -> StrictFalse | None:
    """Read a request's level for tools with ``strict: false``; None for null."""
    if value is None or (isinstance(value, str) and value in STRICT_FALSE):
        return value
    expected = f"Use {' or '.join(map(repr, STRICT_FALSE))}"
    raise InvalidRequest(f"unknown level {excerpt(value)}", location, expected)


DEFAULT_POLICY = StrictPolicy()
