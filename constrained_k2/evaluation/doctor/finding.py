"""What a check has found."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

Verdict = Literal["ok", "warning", "fault", "cannot tell"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

_SHOWN = 160


@dataclass(frozen=True, slots=True)
class Finding:
    """One answer to one question about a server.

    Attributes:
        verdict: ``fault``: requests are served wrong. ``warning``: worth knowing, served right as far as seen.
            ``cannot tell``: what would show it is not to be had from this server.
        seen: What the server did.
        remedy: The flag, version or setting to change; empty where nothing is to be done.
    """

    verdict: Verdict
    seen: str
    remedy: str = ""


def ok(seen: str) -> Finding:
    """Nothing to be done."""
    return Finding("ok", seen)


@dataclass(frozen=True, slots=True)
class Result:
    """A finding with the check that made it.

    Attributes:
        check: The check's name, for scripts.
        title: What it asks, for people.
        finding: The answer.
    """

    check: str
    title: str
    finding: Finding

    def to_json(self) -> dict[str, Any]:
        """One flat object."""
        return {"check": self.check, "title": self.title} | asdict(self.finding)


def shown(text: str, limit: int = _SHOWN) -> str:
    """A server's text, fit to be printed: bounded, and nothing in it can steer a terminal."""
    cut = text if len(text) <= limit else f"{text[:limit]}…"
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in cut)
