"""Requests of an evaluation, with the calls of a right answer if they are known."""

import hashlib
import json
import lzma
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import msgspec

from constrained_k2.errors import InvalidRequest, kind_of_json

# Ordinary requests, every third one adversarial, without expected calls. Written by ``scripts/bundled_samples``.
BUNDLED = Path(__file__).parent / "bundled.jsonl.xz"
UNCONSTRAINED = {"vllm_xargs": {"constrained_k2": "off"}}  # added to a request's body, this opts out of the constraint
_OURS = {"expected", "category", "official_finish_reason"}
_SET_BY_RUNNER = {"model", "stream", "stream_options", "seed", "n"}  # equal in every arm
T = TypeVar("T")


def checked(value: Any, kind: type[T], location: str) -> T:
    """Decoded JSON as a typed value; raises ``InvalidRequest`` if a field is missing or has another type."""
    try:
        return msgspec.convert(value, kind)
    except ValueError as error:
        raise InvalidRequest(str(error), location) from None


class _ExpectedCall(msgspec.Struct):  # exact arguments, or the accepted values of each
    name: str
    arguments: Any = None
    accepted: dict[str, tuple[Any, ...]] | None = None
    omissible: frozenset[str] | None = None
    lenient: Any = False


class _Expected(msgspec.Struct):
    calls: list[_ExpectedCall]


@dataclass(frozen=True, slots=True)
class ExpectedCall:
    """A call of a right answer."""

    name: str
    arguments: Mapping[str, tuple[Any, ...]]  # argument -> its right values
    omissible: frozenset[str] = frozenset()  # arguments of these that may be omitted
    lenient: bool = False  # compare as the Berkeley leaderboard does: strings without case, blanks and ,./-_*^

    def to_json(self) -> dict[str, Any]:
        """As in a sample file: with ``arguments`` if they are exact, else with the ``accepted`` values of each."""
        if not self.lenient and not self.omissible and all(len(values) == 1 for values in self.arguments.values()):
            return {"name": self.name, "arguments": {name: values[0] for name, values in self.arguments.items()}}
        accepted = {name: list(values) for name, values in self.arguments.items()}
        return {"name": self.name, "accepted": accepted, "omissible": sorted(self.omissible), "lenient": self.lenient}


@dataclass(frozen=True, slots=True)
class Sample:
    """A request; :func:`read_sample` checks it."""

    number: int  # its line in the source, from 1; K2 Vendor Verifier's data_index
    category: str
    body: dict[str, Any] = field(repr=False)  # without the fields that the runner sets
    expected: tuple[ExpectedCall, ...] | None = field(default=None, repr=False)  # of a right answer; None if not known
    official: str | None = None  # the finish_reason of a reference answer
    key: str = ""  # a digest of the body, and how often it occurred before
    stream: bool = field(default=True, compare=False)  # for server tests; an A/B run streams every sample

    @property
    def tools(self) -> dict[str, Any]:
        """Name -> the function's ``parameters``, None if it has none; the first function of a name counts."""
        found: dict[str, Any] = {}
        for tool in self.body.get("tools") or ():
            found.setdefault(tool["function"]["name"], tool["function"].get("parameters"))
        return found

    @property
    def choice(self) -> str:
        """``auto``, ``required``, ``none``, or ``named``."""
        choice = self.body.get("tool_choice") or ("auto" if self.body.get("tools") else "none")
        return choice if isinstance(choice, str) else "named"

    @property
    def first_index(self) -> int:
        """The index of the answer's first call: the number of calls in the history."""
        return sum(len(message.get("tool_calls") or ()) for message in self.body["messages"])

    @property
    def max_calls(self) -> int | None:
        """The limit of calls in the answer; None for any number."""
        if self.choice == "none":
            return 0
        return 1 if self.choice == "named" or self.body.get("parallel_tool_calls") is False else None

    @property
    def should_call(self) -> bool | None:
        """True if a right answer calls a tool, by its expected calls, the reference or the choice; None if unknown."""
        if self.expected is not None:
            return bool(self.expected)
        if self.official is not None:
            return self.official == "tool_calls"
        return {"required": True, "named": True, "none": False}.get(self.choice)

    def to_json(self) -> dict[str, Any]:
        """The sample as decoded JSON, for a run's database."""
        expected = None if self.expected is None else {"calls": [call.to_json() for call in self.expected]}
        first = {"number": self.number, "category": self.category, "body": self.body}
        return first | {"expected": expected, "official": self.official, "key": self.key}

    @classmethod
    def from_json(cls, value: Any) -> "Sample":
        """Read :meth:`to_json`, which is trusted."""
        return cls(**value | {"expected": _read_expected(value["expected"])})


class _Message(msgspec.Struct):
    role: str
    tool_calls: list[Any] | None = None


class _Named(msgspec.Struct):
    name: str


class _Tool(msgspec.Struct):
    function: _Named


class _Body(msgspec.Struct):
    messages: list[_Message]
    tools: list[_Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None


def read_sample(value: Any, number: int, official: str | None = None) -> Sample:
    """Read a request body, K2 Vendor Verifier's or ours; raises ``InvalidRequest`` for anything else.

    The role ``_input`` of the vendor verifier's samples becomes ``system`` (github.com/MoonshotAI/K2-Vendor-Verifier,
    tool_calls_eval.py, ``prepare_request``).
    """
    if not isinstance(value, dict):
        raise InvalidRequest(f"expected an object, got {kind_of_json(value)}", "sample")
    if not checked(value, _Body, "sample").messages:
        raise InvalidRequest("the list is empty", "messages")
    body = {name: part for name, part in value.items() if name not in _OURS | _SET_BY_RUNNER}
    body["messages"] = [each | {"role": "system"} if each["role"] == "_input" else each for each in value["messages"]]
    category = str(value.get("category") or "all")
    official = official or value.get("official_finish_reason")
    return Sample(number, category, body, _read_expected(value.get("expected")), official, key_of(body))


def bundled_bodies(path: Path, count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Some request bodies of a file, for ``read_sample``: the first ones for seed 0, else chosen by the seed."""
    lines = lzma.decompress(path.read_bytes()).decode().splitlines()
    if count > len(lines):
        raise InvalidRequest(f"{count} samples, but only {len(lines)} are bundled", remedy="Ask for fewer")
    yield from map(json.loads, Random(seed).sample(lines, count) if seed else lines[:count])  # noqa: S311 - no secret


def key_of(body: dict[str, Any], occurrence: int = 0) -> str:
    """A digest of a body: 16 hexadecimal digits, and how often it occurred before, if it did."""
    text = json.dumps(body, sort_keys=True, ensure_ascii=False)
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
    return f"{digest}.{occurrence}" if occurrence else digest


def _read_expected(value: Any) -> tuple[ExpectedCall, ...] | None:
    if value is None:
        return None
    calls = enumerate(checked(value, _Expected, "expected").calls)
    return tuple(_expected(call, f"expected.calls[{number}].arguments") for number, call in calls)


def _expected(call: _ExpectedCall, location: str) -> ExpectedCall:
    if call.accepted is not None:
        return ExpectedCall(call.name, call.accepted, call.omissible or frozenset(), call.lenient is True)
    arguments = call.arguments
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"not JSON: {error}", location) from None
    if not isinstance(arguments, dict):
        raise InvalidRequest(f"expected an object, got {kind_of_json(arguments)}", location)
    return ExpectedCall(call.name, {name: (argument,) for name, argument in arguments.items()})
