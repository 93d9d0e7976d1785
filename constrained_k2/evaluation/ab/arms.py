"""The arms of a comparison: a server, a model, and what is added to every request."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from constrained_k2.errors import InvalidRequest
from constrained_k2.evaluation.client import base_url
from constrained_k2.evaluation.sample import UNCONSTRAINED, checked

# Preset -> what it adds to a request. ``plain`` is any other server: nothing is added, nothing is expected.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "unconstrained": UNCONSTRAINED,
    "constrained": {},
    "nearest": {"vllm_xargs": {"constrained_k2_undeclared_calls": "nearest"}},
    "llguidance": {"vllm_xargs": {"constrained_k2": "llguidance"}},
    "xgrammar": {"vllm_xargs": {"constrained_k2": "xgrammar"}},
    "plain": {},
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class Arm:
    """One side of a comparison; ``parse_arm`` and ``read_arm`` check it."""

    name: str  # of its rows in a run
    url: str = ""  # without /v1
    preset: str = "plain"
    model: str = ""  # empty for the server's first
    body: dict[str, Any] = field(default_factory=dict)  # merged into every request, after the preset's addition
    api_key_env: str = ""  # the environment variable with the API key

    @property
    def is_constrained(self) -> bool:
        """True if this package constrains the arm: a call wrong in form is then our fault."""
        return self.preset in {"constrained", "nearest", "llguidance", "xgrammar"}

    @property
    def added(self) -> dict[str, Any]:
        """The preset's and the arm's additions to a request's body."""
        return merged(PRESETS[self.preset], self.body)

    @property
    def identity(self) -> dict[str, Any]:
        """The fields that must not change when a run resumes; the server may have moved."""
        return {"preset": self.preset, "model": self.model, "body": self.body}


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Both objects in one, recursively; for other values the second wins."""
    result = dict(first)
    for name, new in second.items():
        old = result.get(name)
        result[name] = merged(old, new) if isinstance(old, Mapping) and isinstance(new, Mapping) else new
    return result


def parse_arm(text: str, url: str | None = None) -> Arm:
    """Read ``PRESET``, ``NAME=URL``, or ``NAME={JSON}`` with the fields of :class:`Arm`; ``url`` is the default."""
    name, equals, rest = text.partition("=")
    if not equals:
        known = [preset for preset in PRESETS if preset != "plain"]
        if name not in known:
            remedy = f"Use {', '.join(known)}; NAME=URL; or NAME={{JSON}}"
            raise InvalidRequest(f"unknown preset {name!r}", "--arm", remedy)
        return read_arm({"name": name, "preset": name}, url)
    if not rest.startswith("{"):
        return read_arm({"name": name, "url": rest, "preset": name if name in PRESETS else "plain"}, url)
    try:
        return read_arm({"name": name} | json.loads(rest), url)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InvalidRequest(f"not JSON: {error}", f"--arm {name}") from None


def read_arm(value: dict[str, Any], url: str | None = None) -> Arm:
    """Read an arm from decoded JSON; raises ``InvalidRequest`` for an unknown or malformed field."""
    location = f"arm {value.get('name')}"
    if unknown := value.keys() - set(Arm.__slots__):
        problem = f"unknown fields: {', '.join(sorted(unknown))}"
        raise InvalidRequest(problem, location, f"Use {', '.join(Arm.__slots__)}")
    arm = checked(value, Arm, location)
    if not _NAME.fullmatch(arm.name):
        raise InvalidRequest("malformed name", location, "Use up to 64 letters, digits, '-', '_' and '.'")
    if arm.preset not in PRESETS:
        raise InvalidRequest(f"unknown preset {arm.preset!r}", location, f"Use one of {', '.join(PRESETS)}")
    return replace(arm, url=base_url(arm.url or url or "", location))
