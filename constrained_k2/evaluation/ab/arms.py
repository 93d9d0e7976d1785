"""What is compared: a server, a model, and what is added to every request."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from constrained_k2.errors import InvalidRequest, kind_of_json
from constrained_k2.evaluation.samples import UNCONSTRAINED

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "unconstrained": UNCONSTRAINED,
    "constrained": {},
    "llguidance": {"vllm_xargs": {"constrained_k2": "llguidance"}},
    "xgrammar": {"vllm_xargs": {"constrained_k2": "xgrammar"}},
    "plain": {},
}
"""What each preset adds to a request. ``plain`` adds nothing and expects nothing: any other server."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_FIELDS = {"name", "preset", "url", "model", "body", "api_key_env"}


@dataclass(frozen=True, slots=True)
class Arm:
    """One side of the comparison.

    Attributes:
        name: Also the name of its file of records.
        url: The server's address, with or without ``/v1``.
        preset: One of :data:`PRESETS`.
        model: The model to ask for; empty for the server's first.
        body: Added to every request, besides the preset's; objects are merged.
        api_key_env: The environment variable that holds the API key, or empty.
    """

    name: str
    url: str
    preset: str = "plain"
    model: str = ""
    body: Mapping[str, Any] = field(default_factory=dict)
    api_key_env: str = ""

    @property
    def is_constrained(self) -> bool:
        """Whether nothing invalid may come of it: a call that is wrong in form is a fault of this package."""
        return self.preset in {"constrained", "llguidance", "xgrammar"}

    @property
    def base_url(self) -> str:
        """The address without ``/v1``."""
        return self.url.rstrip("/").removesuffix("/v1").rstrip("/")

    @property
    def added(self) -> dict[str, Any]:
        """What is added to a request's body."""
        return merged(PRESETS[self.preset], self.body)

    @property
    def identity(self) -> dict[str, Any]:
        """What may not change while a run goes on; the address may, the server may have moved."""
        return {"preset": self.preset, "model": self.model, "body": dict(self.body)}

    def api_key(self) -> str | None:
        """The key.

        Raises:
            InvalidRequest: The environment variable is not set.
        """
        if not self.api_key_env:
            return None
        key = os.environ.get(self.api_key_env)
        if not key:
            raise InvalidRequest(f"no environment variable {self.api_key_env!r} is set", f"arm {self.name}")
        return key


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Both objects in one; where both hold an object, that is merged too, else the second wins."""
    result = dict(first)
    for name, value in second.items():
        before = result.get(name)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        result[name] = merged(before, value) if both else value  # type: ignore[arg-type]
    return result


def parse_arm(text: str, url: str | None = None) -> Arm:
    """Read ``PRESET``, ``NAME=URL``, or ``NAME={JSON}`` with the fields of :class:`Arm`.

    Args:
        text: As it stands on the command line.
        url: For an arm that names none.

    Raises:
        InvalidRequest: It is none of these.
    """
    name, equals, rest = text.partition("=")
    if not equals:
        if name not in PRESETS or name == "plain":
            known = ", ".join(preset for preset in PRESETS if preset != "plain")
            raise InvalidRequest(f"{name!r} is no preset", "--arm", f"Give one of {known}; NAME=URL; or NAME={{JSON}}")
        return read_arm({"name": name, "preset": name}, url)
    if not rest.startswith("{"):
        return read_arm({"name": name, "url": rest, "preset": name if name in PRESETS else "plain"}, url)
    try:
        value = json.loads(rest)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"is not JSON: {error}", f"--arm {name}") from None
    return read_arm({"name": name} | value, url)


def read_arm(value: Any, url: str | None = None) -> Arm:
    """Read an arm from JSON.

    Raises:
        InvalidRequest: A field is unknown or of another type.
    """
    if not isinstance(value, dict):
        raise InvalidRequest(f"must be an object, not {kind_of_json(value)}", "arm")
    place = f"arm {value.get('name')}"
    if unknown := value.keys() - _FIELDS:
        raise InvalidRequest(f"no such field: {', '.join(sorted(unknown))}", place, f"Known: {sorted(_FIELDS)}")
    for name in _FIELDS - {"body"}:
        if not isinstance(value.get(name, ""), str):
            raise InvalidRequest(f"must be text, not {kind_of_json(value[name])}", f"{place}.{name}")
    if not _NAME.fullmatch(value.get("name", "")):
        raise InvalidRequest("must be letters, digits, '-', '_' and '.', up to 64", f"{place}.name")
    if not isinstance(value.get("body", {}), dict):
        raise InvalidRequest(f"must be an object, not {kind_of_json(value['body'])}", f"{place}.body")
    arm = Arm(**{"url": "", **value})
    if arm.preset not in PRESETS:
        raise InvalidRequest(f"{arm.preset!r} is no preset", f"{place}.preset", f"Give one of {', '.join(PRESETS)}")
    arm = arm if arm.url or url is None else replace(arm, url=url)
    if not arm.url.startswith(("http://", "https://")):
        raise InvalidRequest(f"{arm.url!r} is no address", f"{place}.url", "Write it as http://localhost:8000")
    return arm


def check_names(arms: Sequence[Arm]) -> None:
    """No two arms may share a name.

    Raises:
        InvalidRequest: Two do.
    """
    names = [arm.name for arm in arms]
    if double := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidRequest(f"given twice: {', '.join(double)}", "--arm", "Give every arm a name of its own")
