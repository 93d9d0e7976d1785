"""The package's errors: what is wrong, where, and what to do about it.

``str()`` joins the three into one line that a server can send to its client.
"""

from typing import Any, Self


def _argument(position: int) -> Any:
    """A read-only attribute: one of the exception's ``args``, which pickling passes to the constructor."""
    return property(lambda error: error.args[position])


class ConstrainedK2Error(Exception):
    """Base of the package's errors.

    Attributes:
        problem: What is wrong, without a full stop.
        location: Where: a path into the request body (``tools[3].function.name``), a file, a token index; may be empty.
        remedy: What to do; may be empty.
    """

    problem: str = _argument(0)
    location: str = _argument(1)
    remedy: str = _argument(2)

    def __init__(self, problem: str, location: str = "", remedy: str = "") -> None:
        super().__init__(problem, location, remedy)

    def __str__(self) -> str:
        text = f"{self.location}: {self.problem}" if self.location else self.problem
        return f"{text}. {self.remedy}." if self.remedy else f"{text}."

    def at_location(self, location: str) -> Self:
        """The same error with a prefix to its location."""
        return type(self)(self.problem, f"{location}{self.location}", *self.args[2:])


class InvalidRequest(ConstrainedK2Error, ValueError):
    """A field of the request body, or an argument of this package, has a wrong value."""


class UnsupportedSchema(ConstrainedK2Error):
    """The engine cannot build a grammar for a tool's JSON Schema.

    Attributes:
        location: The tool's path in the request, and a JSON pointer into its ``parameters``.
        keyword: The schema keyword; empty if unknown.
        engine: The engine's name.
    """

    keyword: str = _argument(3)
    engine: str = _argument(4)

    def __init__(self, problem: str, location: str = "", remedy: str = "", keyword: str = "", engine: str = "") -> None:
        super().__init__(problem, location, remedy)
        self.args = (problem, location, remedy, keyword, engine)


class SchemaTooCostly(ConstrainedK2Error):
    """A request exceeds one of the budgets that keep hostile input cheap.

    Attributes:
        budget: The budget's name: a field of :class:`constrained_k2.Limits`, or an engine for its builtin limits.
        limit: The budget; 0 if the engine does not report it.
        actual: The request's value; 0 if the engine does not report it.
    """

    budget: str = _argument(3)
    limit: int = _argument(4)
    actual: int = _argument(5)

    def __init__(  # noqa: PLR0913, PLR0917 - the fields of the error; pickling passes them by position
        self, problem: str, location: str = "", remedy: str = "", budget: str = "", limit: int = 0, actual: int = 0
    ) -> None:
        super().__init__(problem, location, remedy)
        self.args = (problem, location, remedy, budget, limit, actual)


class FormatMismatch(ConstrainedK2Error):
    """The tool-call format cannot be written in this vocabulary."""


class MalformedCompletion(ConstrainedK2Error):
    """Token ids are not a completion in this vocabulary, or calls cannot be rendered."""


def kind_of_json(value: object) -> str:
    """The JSON type of a value, with its article."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)


def excerpt(value: object) -> str:
    """A wrong value as a message shows it: the start of a string, quoted, or the JSON type of any other value."""
    return repr(value[:80]) if isinstance(value, str) else kind_of_json(value)


def missing_dependency(error: ModuleNotFoundError) -> str:
    """The message for an import that failed: which extra of this package to install."""
    name = str(error.name).partition(".")[0]
    extra = {"torch": "vllm", "vllm": "vllm", "xgrammar": "xgrammar"}.get(name, "demo")
    return f"{name} is not installed: pip install 'constrained-k2[{extra}]'"
