"""Every error of the package: what is wrong, where, and what to do about it.

All errors take ``(problem, place, remedy)``; the three are read-only and ``str()`` joins them into one line that can be
sent to the client of a server as it is.
"""


class ConstrainedK2Error(Exception):
    """Base of all errors raised on purpose by this package.

    Args:
        problem: What is wrong, as a clause without a full stop.
        place: Where: a path into the request body (``tools[3].function.name``), a file, a token position.
        remedy: What the reader should do.
    """

    def __init__(self, problem: str, place: str = "", remedy: str = "") -> None:
        super().__init__(problem, place, remedy)

    @property
    def problem(self) -> str:
        """What is wrong."""
        return str(self.args[0])

    @property
    def place(self) -> str:
        """Where it is wrong; empty when the whole input is meant."""
        return str(self.args[1])

    @property
    def remedy(self) -> str:
        """What to do about it; empty when the problem says it all."""
        return str(self.args[2])

    def __str__(self) -> str:
        text = f"{self.place}: {self.problem}" if self.place else self.problem
        return f"{text}. {self.remedy}." if self.remedy else f"{text}."


class InvalidRequest(ConstrainedK2Error, ValueError):
    """The request body, or an argument of ours, is not what the interface takes."""


class UnsupportedSchema(ConstrainedK2Error):
    """A tool's JSON Schema holds something for which the engine cannot build a grammar.

    Args:
        problem: What the engine or the compiler says of it.
        place: The JSON pointer into the tool's ``parameters``, behind the tool's place in the request.
        remedy: What to do.
        keyword: The schema keyword, where it is known.
        engine: The engine's name.
    """

    def __init__(self, problem: str, place: str = "", remedy: str = "", keyword: str = "", engine: str = "") -> None:
        super().__init__(problem, place, remedy)
        self.args = (problem, place, remedy, keyword, engine)

    def at_place(self, place: str) -> "UnsupportedSchema":
        """The same error about the same schema at another place."""
        return UnsupportedSchema(self.problem, f"{place}{self.place}", self.remedy, self.keyword, self.engine)

    @property
    def keyword(self) -> str:
        """The schema keyword that is not supported; empty when the engine does not say."""
        return str(self.args[3])

    @property
    def engine(self) -> str:
        """The engine that refused the schema."""
        return str(self.args[4])


class SchemaTooCostly(ConstrainedK2Error):
    """A request is over one of the budgets that keep hostile input cheap.

    Args:
        problem: What is too large.
        place: Where in the request.
        remedy: What to do.
        budget: The budget's name: a field of :class:`constrained_k2.tools.Limits`, or an engine for its own limits.
        limit: The budget; 0 where the engine does not say.
        actual: What the request has; the same.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - the fields of the error; pickling passes them by position
        self, problem: str, place: str = "", remedy: str = "", budget: str = "", limit: int = 0, actual: int = 0
    ) -> None:
        super().__init__(problem, place, remedy)
        self.args = (problem, place, remedy, budget, limit, actual)

    def at_place(self, place: str) -> "SchemaTooCostly":
        """The same error about the same schema at another place."""
        return SchemaTooCostly(self.problem, f"{place}{self.place}", self.remedy, self.budget, self.limit, self.actual)

    @property
    def budget(self) -> str:
        """The name of the budget."""
        return str(self.args[3])

    @property
    def limit(self) -> int:
        """The budget."""
        return int(self.args[4])

    @property
    def actual(self) -> int:
        """What the request has."""
        return int(self.args[5])


class FormatMismatch(ConstrainedK2Error):
    """The vocabulary is not one in which Kimi K2's tool-call format can be written."""


class MalformedCompletion(ConstrainedK2Error):
    """Token ids that are no completion in this vocabulary, or calls that cannot be rendered."""


def kind_of_json(value: object) -> str:
    """How a JSON reader calls the type of a value."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)
