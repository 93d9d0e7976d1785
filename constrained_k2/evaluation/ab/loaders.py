"""Loads samples in our format, K2 Vendor Verifier's, or the Berkeley leaderboard's (BFCL)."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from constrained_k2.errors import InvalidRequest
from constrained_k2.evaluation.sample import Sample, checked, read_sample

T = TypeVar("T")
# The leaderboard's names of types, mapped as it does for OpenAI's API (ShishirPatil/gorilla, type_mappings.py).
_BFCL_TYPES = {
    **dict.fromkeys(("dict", "HashMap", "Hashtable"), "object"),
    **dict.fromkeys(("float", "double"), "number"),
    **dict.fromkeys(("tuple", "list", "ArrayList", "Array", "Queue", "Stack"), "array"),
    **dict.fromkeys(("any", "Any", "char", "String"), "string"),
    **dict.fromkeys(("byte", "short", "long", "Bigint"), "integer"),
    "bool": "boolean",
}


class BadLine(NamedTuple):
    """A line of a sample file that could not be read."""

    line: int  # its number, from 1
    reason: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}"


class _Question(msgspec.Struct):
    question: list[list[Any]]
    function: list[Any]


class _Truth(msgspec.Struct):
    ground_truth: list[Any]
    id: Any = None


class _Official(msgspec.Struct):
    data_index: int
    status: str
    finish_reason: str | None = None


def read_samples(path: Path, official: Path | None = None) -> Iterator[Sample | BadLine]:
    """Read a sample file, whose lines have one of two forms.

    * ``{"messages": ..., "tools": ...}``: a request body, K2 Vendor Verifier's ``samples.jsonl`` or ours.
    * ``{"id", "question": [[...]], "function": [...]}``: the Berkeley function-calling leaderboard's, as published;
      its right answers are looked up in ``possible_answer/`` beside the file.

    ``official`` are results of a reference, the vendor verifier's ``..._results.jsonl``. Raises ``InvalidRequest`` if a
    file cannot be read.
    """
    try:
        answers = path.parent / "possible_answer" / path.name
        truths = {str(truth.id): truth.ground_truth for truth in _rows(answers if answers.exists() else None, _Truth)}
        answered = (row for row in _rows(official, _Official) if row.status == "success")
        reasons = {row.data_index: row.finish_reason or "others" for row in answered}
        for line, value in _lines(path):
            yield value if isinstance(value, BadLine) else _read(value, line, path.stem, truths, reasons)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"cannot be read: {error}", str(path)) from error


def _read(value: Any, line: int, stem: str, truths: dict[str, Any], reasons: dict[int, str]) -> Sample | BadLine:
    try:
        if isinstance(value, dict) and "messages" not in value and "question" in value and "function" in value:
            return _bfcl(value, line, stem, truths)
        return read_sample(value, line, reasons.get(line))
    except (InvalidRequest, RecursionError) as error:
        return BadLine(line, str(error))


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Number and decoded JSON of every line that is not blank; a :class:`BadLine` in place of malformed JSON."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield number, json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
                except (ValueError, RecursionError) as error:
                    yield number, BadLine(number, f"not JSON: {error}")


def _rows(path: Path | None, kind: type[T]) -> Iterator[T]:
    for _, value in _lines(path) if path is not None else ():
        with suppress(ValueError):
            yield msgspec.convert(value, kind)


def _bfcl(value: dict[str, Any], line: int, stem: str, truths: dict[str, Any]) -> Sample:
    row = checked(value, _Question, "question")
    if not row.question:
        raise InvalidRequest("the list of turns is empty", "question")
    category = stem.removeprefix("BFCL_v3_").removeprefix("BFCL_v4_")
    tools = [{"type": "function", "function": _openai_schema(function)} for function in row.function]
    sample: dict[str, Any] = {"messages": row.question[0], "tools": tools, "category": category}
    if "irrelevance" in category:
        sample["expected"] = {"calls": []}
    elif (truth := truths.get(str(value.get("id")))) is not None:
        sample["expected"] = {"calls": [_expected(call) for call in truth]}
    return read_sample(sample, line)


def _openai_schema(value: Any) -> Any:
    if isinstance(value, list):
        return [_openai_schema(part) for part in value]
    if not isinstance(value, dict):
        return value
    return {
        # A property may be called "type"; only the keyword's value is a string.
        name: _BFCL_TYPES.get(part, part) if name == "type" and isinstance(part, str) else _openai_schema(part)
        for name, part in value.items()
        if name != "optional" or not isinstance(part, bool)  # not a JSON Schema keyword
    }


def _expected(call: Any) -> dict[str, Any]:
    """Convert ``{name: {argument: [right values]}}``; an empty string among the values allows to omit the argument."""
    functions = checked(call, dict[str, dict[str, list[Any]]], "ground_truth")
    if len(functions) != 1:
        raise InvalidRequest("expected an object with one function", "ground_truth")
    ((name, arguments),) = functions.items()
    omissible = [argument for argument, values in arguments.items() if "" in values]
    return {"name": name, "accepted": arguments, "omissible": omissible, "lenient": True}
