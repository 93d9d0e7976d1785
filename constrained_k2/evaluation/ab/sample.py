"""One request of an evaluation, and what a right answer to it is, where that is known."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from constrained_k2.errors import InvalidRequest, kind_of_json

_OWN_FIELDS = {"expected", "category", "official_finish_reason"}
_SENT_BY_THE_RUNNER = {
    "model",
    "stream",
    "stream_options",
    "seed",
    "n",
}  # the same in every arm, whatever a sample says


@dataclass(frozen=True, slots=True)
class ExpectedCall:
    """A call that a right answer holds.

    Attributes:
        name: The function.
        arguments: Argument -> every value that is right for it.
        omissible: Arguments of these that may as well be left out.
        lenient: Whether strings are compared as the Berkeley leaderboard does: without case and ``, . / - _ * ^``
            and blanks, and whether nested values are lists of right values too.
    """

    name: str
    arguments: Mapping[str, tuple[Any, ...]]
    omissible: frozenset[str] = frozenset()
    lenient: bool = False

    def to_json(self) -> dict[str, Any]:
        """The form in a sample file."""
        accepted = {name: list(values) for name, values in self.arguments.items()}
        if not self.lenient and not self.omissible and all(len(values) == 1 for values in accepted.values()):
            return {"name": self.name, "arguments": {name: values[0] for name, values in accepted.items()}}
        omissible = sorted(self.omissible)
        return {"name": self.name, "accepted": accepted, "omissible": omissible, "lenient": self.lenient}

    @classmethod
    def from_json(cls, value: Any, place: str) -> "ExpectedCall":
        """Read ``{"name", "arguments"}`` (exact values), or ``{"name", "accepted"}`` (lists of right values).

        Raises:
            InvalidRequest: It is neither.
        """
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            raise InvalidRequest("is no call: it has no name", place)
        if "accepted" in value:
            accepted = value["accepted"]
            if not isinstance(accepted, dict) or not all(isinstance(values, list) for values in accepted.values()):
                raise InvalidRequest("must map every argument to a list of values", f"{place}.accepted")
            arguments = {name: tuple(values) for name, values in accepted.items()}
            omissible = value.get("omissible") or ()
            if not isinstance(omissible, list | tuple) or not all(isinstance(name, str) for name in omissible):
                raise InvalidRequest("must be a list of names", f"{place}.omissible")
            return cls(value["name"], arguments, frozenset(omissible), value.get("lenient") is True)
        exact = value.get("arguments")
        if isinstance(exact, str):
            try:
                exact = json.loads(exact)
            except (ValueError, RecursionError) as error:
                raise InvalidRequest(f"is not JSON: {error}", f"{place}.arguments") from None
        if not isinstance(exact, dict):
            raise InvalidRequest(f"must be an object, not {kind_of_json(exact)}", f"{place}.arguments")
        return cls(value["name"], {name: (argument,) for name, argument in exact.items()})


@dataclass(frozen=True, slots=True)
class Sample:
    """One request, sent to every arm alike.

    Attributes:
        number: Its line in the source, from 1; the vendor verifier's ``data_index``.
        category: For figures by category.
        body: The chat-completions body, without what the runner sets (model, stream, seed).
        expected: The calls of a right answer; empty if it makes none, None if that is not known.
        official: The ``finish_reason`` of a reference answer, where one is given.
        key: Names the request: a digest of the body (and of how often it came before, if it did).
    """

    number: int
    category: str
    body: dict[str, Any] = field(repr=False)
    expected: tuple[ExpectedCall, ...] | None = field(default=None, repr=False)
    official: str | None = None
    key: str = ""

    @property
    def tools(self) -> dict[str, Any]:
        """Name -> the function's ``parameters``; None where it has none. The first of a name counts."""
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
        """How many calls the answer may hold; None for any number."""
        if self.choice == "none":
            return 0
        return 1 if self.choice == "named" or self.body.get("parallel_tool_calls") is False else None

    @property
    def should_call(self) -> bool | None:
        """Whether a right answer calls a tool.

        By what is expected, else by the reference answer, else by the tool choice; None for ``auto`` without either.
        """
        if self.expected is not None:
            return bool(self.expected)
        if self.official is not None:
            return self.official == "tool_calls"
        return {"required": True, "named": True, "none": False}.get(self.choice)

    def to_json(self) -> dict[str, Any]:
        """One line of a run's ``samples.jsonl``."""
        expected = None if self.expected is None else {"calls": [call.to_json() for call in self.expected]}
        return {
            "number": self.number,
            "category": self.category,
            "body": self.body,
            "expected": expected,
            "official": self.official,
            "key": self.key,
        }

    @classmethod
    def from_json(cls, value: Any) -> "Sample":
        """Read back :meth:`to_json`."""
        expected = _read_expected(value["expected"])
        return cls(value["number"], value["category"], value["body"], expected, value["official"], value["key"])


def read_sample(value: Any, number: int, official: str | None = None) -> Sample:
    """Read a request body, K2 Vendor Verifier's or ours.

    Every field of the body is sent as it is, but for ``expected`` (``{"calls": [{"name", "arguments"}]}``),
    ``category`` and ``official_finish_reason``, which are ours, and the fields that the runner sets. The role
    ``_input`` of the vendor verifier's samples becomes ``system``, as its own tool has it
    (github.com/MoonshotAI/K2-Vendor-Verifier, tool_calls_eval.py, ``prepare_request``).

    Args:
        value: The decoded JSON.
        number: Its line in the source.
        official: The ``finish_reason`` of a reference answer.

    Raises:
        InvalidRequest: It is no request.
    """
    if not isinstance(value, dict):
        raise InvalidRequest(f"must be an object, not {kind_of_json(value)}", "sample")
    messages = value.get("messages")
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("must be a list of messages", "messages")
    for place, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise InvalidRequest("must be an object with a role", f"messages[{place}]")
        if not isinstance(message.get("tool_calls") or [], list):
            raise InvalidRequest("must be a list", f"messages[{place}].tool_calls")
    tools = value.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise InvalidRequest(f"must be a list, not {kind_of_json(tools)}", "tools")
    for place, tool in enumerate(tools or ()):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InvalidRequest("must be a tool with a function that has a name", f"tools[{place}]")
    if not isinstance(value.get("tool_choice") or "auto", str | dict):
        raise InvalidRequest("must be a string or an object", "tool_choice")
    body = {name: part for name, part in value.items() if name not in _OWN_FIELDS | _SENT_BY_THE_RUNNER}
    body["messages"] = [
        message | {"role": "system"} if message["role"] == "_input" else message for message in messages
    ]
    official = official or value.get("official_finish_reason")
    category = str(value.get("category") or "all")
    return Sample(number, category, body, _read_expected(value.get("expected")), official, key_of(body))


def key_of(body: dict[str, Any], occurrence: int = 0) -> str:
    """A digest of a body: 16 hexadecimal digits, and the number of times that it came before, if it did."""
    text = json.dumps(body, sort_keys=True, ensure_ascii=False)
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
    return f"{digest}.{occurrence}" if occurrence else digest


def _read_expected(value: Any) -> tuple[ExpectedCall, ...] | None:
    if value is None:
        return None
    calls = value.get("calls") if isinstance(value, dict) else None
    if not isinstance(calls, list):
        raise InvalidRequest('must be {"calls": [...]}', "expected")
    return tuple(ExpectedCall.from_json(call, f"expected.calls[{place}]") for place, call in enumerate(calls))
