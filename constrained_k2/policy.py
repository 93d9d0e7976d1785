"""How strictly a tool's schema is kept: what its ``strict`` says, within what the server allows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from constrained_k2.errors import InvalidRequest

Level = Literal["object", "enforce", "strict"]
"""``object``: arguments are any JSON object. ``enforce``: what can be kept is, the rest is relaxed and reported.
``strict``: everything is kept, or the request is refused."""

LEVELS: tuple[Level, ...] = get_args(Level)
_DECLARED: dict[bool | None, Level] = {False: "object", None: "enforce", True: "strict"}


@dataclass(frozen=True, slots=True)
class StrictPolicy:
    """The bounds that a server sets on its tools' ``strict``.

    Tools say ``strict: true`` for ``strict``, nothing for ``enforce`` (Moonshot's own rule: left out means enforced)
    and ``strict: false`` for ``object``.

    Attributes:
        least: Tools that ask for less get this.
        most: Tools that ask for more get this.
    """

    least: Level = "object"
    most: Level = "strict"

    def __post_init__(self) -> None:
        for name in ("least", "most"):
            if getattr(self, name) not in LEVELS:
                raise InvalidRequest(
                    f"the level {str(getattr(self, name))[:40]!r} is not known", f"strict.{name}", f"Use {_LISTED}"
                )
        if LEVELS.index(self.least) > LEVELS.index(self.most):
            raise InvalidRequest(f"least {self.least!r} is above most {self.most!r}", "strict", "Swap them")

    def level(self, strict: bool | None) -> Level:  # noqa: FBT001 - as the request has it
        """The level for a tool whose ``strict`` is this."""
        return max(self.least, min(self.most, _DECLARED[strict], key=LEVELS.index), key=LEVELS.index)

    @classmethod
    def from_config(cls, config: object) -> "StrictPolicy":
        """Read ``{"least": …, "most": …}``, or a level alone for both; nothing at all is the default.

        Raises:
            InvalidRequest: It is neither.
        """
        if config is None:
            return cls()
        if isinstance(config, str):
            return cls(config, config)  # type: ignore[arg-type] # checked there
        if not isinstance(config, Mapping) or not config.keys() <= {"least", "most"}:
            raise InvalidRequest(f"{str(config)[:80]!r} is no policy", "strict", f"Use {_LISTED}, or least and most")
        known: Mapping[str, Any] = config
        return cls(**known)


_LISTED = ", ".join(map(repr, LEVELS))
DEFAULT_POLICY = StrictPolicy()
