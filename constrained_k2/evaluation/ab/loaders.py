"""Samples out of files: the vendor verifier's, the Berkeley leaderboard's, tools with prompts, lists of schemas."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from constrained_k2.errors import InvalidRequest, kind_of_json
from constrained_k2.evaluation.ab.lines import MAX_LINE, bounded_lines
from constrained_k2.evaluation.ab.sample import ExpectedCall, Sample, key_of, read_sample
from constrained_k2.evaluation.schemas.corpora import moved

_BFCL_TYPES = {
    **dict.fromkeys(("dict", "HashMap", "Hashtable"), "object"),
    **dict.fromkeys(("float", "double"), "number"),
    **dict.fromkeys(("tuple", "list", "ArrayList", "Array", "Queue", "Stack"), "array"),
    **dict.fromkeys(("any", "Any", "char", "String"), "string"),
    **dict.fromkeys(("byte", "short", "long", "Bigint"), "integer"),
    "bool": "boolean",
}
"""The leaderboard's names of types, as it maps them for OpenAI's API (ShishirPatil/gorilla, type_mappings.py)."""


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no sample.

    Attributes:
        line: Its number, from 1.
        reason: What is wrong with it.
    """

    line: int
    reason: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}"


def read_samples(path: Path, answers: Path | None = None, official: Path | None = None) -> Iterator[Sample | BadLine]:
    """Read any of the known kinds of files; lines are told apart one by one.

    * ``{"messages": ..., "tools": ...}``: a request body, K2 Vendor Verifier's ``samples.jsonl`` or ours.
    * ``{"id", "question": [[...]], "function": [...]}``: the Berkeley function-calling leaderboard's, as published;
      its right answers are looked for in ``possible_answer/`` beside the file.
    * ``{"schema": ...}``: Kimi Vendor Verifier's schema cases, each the property ``value`` of a tool that must be
      called.
    * One JSON document ``{"tools": [...], "prompts": [...]}``, over any number of lines.

    Args:
        path: The file.
        answers: The leaderboard's right answers, if they lie elsewhere.
        official: Results of a reference (the vendor verifier's ``..._results.jsonl``): the ``finish_reason`` of each
            ``data_index``.

    Yields:
        A sample, or what is wrong with a line.

    Raises:
        InvalidRequest: A file cannot be read.
    """
    try:
        document = _whole_document(path)
        if document is not None:
            yield from _prompts(document)
            return
        if answers is None and (beside := path.parent / "possible_answer" / path.name).exists():
            answers = beside
        truths = dict(_ground_truths(answers)) if answers is not None else {}
        reasons = dict(_official_reasons(official)) if official is not None else {}
        for line, value in _lines(path):
            yield value if isinstance(value, BadLine) else _read(value, line, path.stem, truths, reasons)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"cannot be read: {error}", str(path)) from error


def numbered_keys(samples: Iterable[Sample | BadLine]) -> Iterator[Sample | BadLine]:
    """The same, with a key of its own for a request that comes again."""
    seen: dict[str, int] = {}
    for sample in samples:
        if isinstance(sample, BadLine):
            yield sample
            continue
        occurrence = seen.get(sample.key, 0)
        seen[sample.key] = occurrence + 1
        yield replace(sample, key=key_of(sample.body, occurrence)) if occurrence else sample


def _read(value: Any, line: int, stem: str, truths: dict[str, Any], reasons: dict[int, str]) -> Sample | BadLine:
    try:
        if isinstance(value, dict) and "messages" not in value:
            if "question" in value and "function" in value:
                return _bfcl(value, line, stem, truths)
            if "schema" in value:
                return _schema_case(value, line)
        return read_sample(value, line, reasons.get(line))
    except InvalidRequest as error:
        return BadLine(line, str(error))


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Number and decoded JSON of every line that is not blank; a :class:`BadLine` for one that is not JSON."""
    for number, line in bounded_lines(path):
        if line is None:
            yield number, BadLine(number, f"is longer than {MAX_LINE} bytes")
        elif line.strip():
            yield number, _decoded(line, number)


def _decoded(line: bytes, number: int) -> Any:
    try:
        return json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except (ValueError, RecursionError) as error:
        return BadLine(number, f"is not JSON: {error}")


def _whole_document(path: Path) -> Any:
    """The document of a ``.json`` file that holds tools and prompts; None for a file of lines."""
    if path.suffix != ".json" or path.stat().st_size > MAX_LINE:
        return None
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError):
        return None  # lines, each of which is looked at alone
    return document if isinstance(document, dict) and "prompts" in document else None


def _prompts(document: dict[str, Any]) -> Iterator[Sample | BadLine]:
    """One sample a prompt: text, or an object with ``prompt`` or ``messages`` and any other field of a body."""
    prompts = document["prompts"]
    if not isinstance(prompts, list):
        raise InvalidRequest(f"must be a list, not {kind_of_json(prompts)}", "prompts")
    shared = {name: value for name, value in document.items() if name != "prompts"}
    for number, entry in enumerate(prompts, 1):
        own = {"prompt": entry} if isinstance(entry, str) else entry
        if not isinstance(own, dict):
            yield BadLine(number, f"prompts[{number - 1}] is {kind_of_json(entry)}, not text or an object")
            continue
        body = shared | own
        prompt = body.pop("prompt", None)
        if isinstance(prompt, str) and "messages" not in own:
            body["messages"] = [*(shared.get("messages") or ()), {"role": "user", "content": prompt}]
        try:
            yield read_sample(body, number)
        except InvalidRequest as error:
            yield BadLine(number, f"prompts[{number - 1}]: {error}")


def _schema_case(value: dict[str, Any], line: int) -> Sample:
    """A schema as the property ``value`` of a tool that must be called (Kimi Vendor Verifier, testdata)."""
    schema = value["schema"]
    parameters = {"type": "object", "properties": {"value": schema}, "required": ["value"]}
    if isinstance(schema, dict) and "$id" not in schema:  # with one, references mean the schema itself
        parameters = moved(parameters, schema)
    tool = {"type": "function", "function": {"name": "submit", "description": "Submit.", "parameters": parameters}}
    body = {
        "messages": [{"role": "user", "content": "Submit any value that fits the schema."}],
        "tools": [tool],
        "tool_choice": {"type": "function", "function": {"name": "submit"}},
        "category": str(value.get("suite") or "schemas"),
    }
    return read_sample(body, line)


def _bfcl(value: dict[str, Any], line: int, stem: str, truths: dict[str, Any]) -> Sample:
    """A question of the Berkeley leaderboard: its first turn."""
    question, functions = value["question"], value["function"]
    if not isinstance(question, list) or not question or not isinstance(question[0], list):
        raise InvalidRequest("must be a list of turns, each a list of messages", "question")
    if not isinstance(functions, list):
        raise InvalidRequest(f"must be a list, not {kind_of_json(functions)}", "function")
    category = stem.removeprefix("BFCL_v3_").removeprefix("BFCL_v4_")
    sample: dict[str, Any] = {
        "messages": question[0],
        "tools": [{"type": "function", "function": _openai_schema(function)} for function in functions],
        "category": category,
    }
    if "irrelevance" in category:
        sample["expected"] = {"calls": []}
    elif (truth := truths.get(str(value.get("id")))) is not None:
        sample["expected"] = {"calls": [_expected(call) for call in truth]}
    return read_sample(sample, line)


def _openai_schema(value: Any) -> Any:
    """A function's schema with JSON Schema's names of types."""
    if isinstance(value, list):
        return [_openai_schema(part) for part in value]
    if not isinstance(value, dict):
        return value
    return {
        # A property may be called "type": only the keyword's value is a string.
        name: _BFCL_TYPES.get(part, part) if name == "type" and isinstance(part, str) else _openai_schema(part)
        for name, part in value.items()
        if name != "optional" or not isinstance(part, bool)  # no keyword of JSON Schema
    }


def _expected(call: Any) -> dict[str, Any]:
    """``{name: {argument: [right values]}}``; an empty string among them says that it may be left out."""
    if not isinstance(call, dict) or len(call) != 1:
        raise InvalidRequest("must be an object with one function", "ground_truth")
    ((name, arguments),) = call.items()
    if not isinstance(arguments, dict) or not all(isinstance(values, list) for values in arguments.values()):
        raise InvalidRequest("must map every argument to a list of values", f"ground_truth.{name}")
    omissible = frozenset(argument for argument, values in arguments.items() if "" in values)
    accepted = {argument: tuple(values) for argument, values in arguments.items()}
    return ExpectedCall(name, accepted, omissible, lenient=True).to_json()


def _ground_truths(path: Path) -> Iterator[tuple[str, list[Any]]]:
    for _, value in _lines(path):
        if isinstance(value, dict) and isinstance(value.get("ground_truth"), list):
            yield str(value.get("id")), value["ground_truth"]


def _official_reasons(path: Path) -> Iterator[tuple[int, str]]:
    for _, value in _lines(path):
        if isinstance(value, dict) and isinstance(value.get("data_index"), int) and value.get("status") == "success":
            yield value["data_index"], str(value.get("finish_reason") or "others")
