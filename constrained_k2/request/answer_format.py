"""Reads a request's response format: ``response_format``, ``text.format``, ``structured_outputs``."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from constrained_k2.errors import InvalidRequest, SchemaTooCostly, excerpt
from constrained_k2.request.tools import ANY_OBJECT, Limits, schema_text
from constrained_k2.request.values import array_at, boolean_at, object_at

AnswerKind = Literal["json", "regex", "lark"]

_ENGINE_OPTIONS = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")
_MAX_CHOICES = 4096


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """A response format: the only text that a turn without calls may contain.

    Attributes:
        kind: The language of ``text``: JSON Schema, regular expression, or LLGuidance's Lark dialect.
        text: The schema as compact JSON, the expression, or the grammar.
        strict: The request's ``strict``: True to refuse a schema that cannot be fully enforced.
        location: The field of the request, for errors.
    """

    kind: AnswerKind
    text: str
    strict: bool | None = None
    location: str = field(default="response_format", compare=False)

    def to_body(self) -> dict[str, Any]:
        """Fields of a request body that :func:`read_answer_format` reads as this response format; the inverse."""
        if self.kind == "json":
            strict = {} if self.strict is None else {"strict": self.strict}
            form = {"schema": json.loads(self.text)} | strict
            return {"response_format": {"type": "json_schema", "json_schema": form}}
        return {"structured_outputs": {"regex" if self.kind == "regex" else "grammar": self.text}}


def read_answer_format(body: Mapping[str, Any], limits: Limits) -> AnswerFormat | None:
    """Read the response format of a request body; None for free text.

    Raises:
        InvalidRequest: A response format is unknown, or there are two.
        SchemaTooCostly: It is longer than the limit for all schemas of a request together.
    """
    text = body.get("text")
    asked = {
        "response_format": body.get("response_format"),
        "text.format": text.get("format") if isinstance(text, Mapping) else None,
        "structured_outputs": body.get("structured_outputs"),
    }
    read = [
        (_structured_outputs if location == "structured_outputs" else _response_format)(value, location)
        for location, value in asked.items()
        if value is not None
    ]
    found = [form for form in read if form is not None]
    if not found:
        return None
    form = found[0]
    if len(found) > 1:
        raise InvalidRequest(f"cannot be combined with {form.location}", found[1].location, "Leave one of them out")
    if (size := len(form.text)) > limits.tools_bytes:
        problem = f"takes {size} bytes, over the limit of {limits.tools_bytes}"
        raise SchemaTooCostly(problem, form.location, "Simplify it", "tools_bytes", limits.tools_bytes, size)
    return form


def _response_format(value: object, location: str) -> AnswerFormat | None:
    given = object_at(location, value)
    kind = given.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return AnswerFormat("json", ANY_OBJECT, location=location)
    if kind != "json_schema":
        problem = f"the type {excerpt(kind)} cannot be combined with tools"
        raise InvalidRequest(problem, f"{location}.type", "Use 'json_schema', 'json_object' or 'text'")
    if "json_schema" in given:  # the responses endpoint has no inner object
        location = f"{location}.json_schema"
        given = object_at(location, given["json_schema"])
    if given.get("schema") is None:
        raise InvalidRequest("must have a schema", f"{location}.schema", "Send one, or use the type 'json_object'")
    strict = boolean_at(f"{location}.strict", given.get("strict"))
    return AnswerFormat("json", _schema(given["schema"], f"{location}.schema"), strict, f"{location}.schema")


def _structured_outputs(value: object, location: str) -> AnswerFormat | None:
    given = {name: each for name, each in object_at(location, value).items() if each is not None and each is not False}
    for name in (*_ENGINE_OPTIONS, "structural_tag"):
        if name in given:
            remedy = "Leave it out, or send a JSON Schema, a regular expression or a Lark grammar"
            raise InvalidRequest("cannot be combined with tools", f"{location}.{name}", remedy)
    if len(given) > 1:
        problem = f"asks for {' and '.join(sorted(map(str, given)))} at once"
        raise InvalidRequest(problem[:200], location, "Leave one of them out")
    for name, form in given.items():
        where = f"{location}.{name}"
        match name:
            case "json_object":
                return AnswerFormat("json", ANY_OBJECT, location=where)
            case "json":
                return AnswerFormat("json", _schema(_decoded(form, where), where), location=where)
            case "choice":
                return AnswerFormat("lark", _alternatives(form, where), location=where)
            case "regex" | "grammar":
                if not isinstance(form, str) or not form:
                    raise InvalidRequest("must be a string that is not empty", where)
                return AnswerFormat("regex" if name == "regex" else "lark", form, location=where)
            case _:
                remedy = "Use 'json', 'json_object', 'regex', 'choice' or 'grammar'"
                raise InvalidRequest(f"unknown form {excerpt(name)}", location, remedy)
    return None


def _schema(schema: object, location: str) -> str:
    if isinstance(schema, msgspec.Raw):
        return bytes(schema).decode()
    return "{}" if schema is True or schema == {} else schema_text(schema, location)


def _decoded(form: object, location: str) -> Any:
    if not isinstance(form, str):
        return form
    try:
        return json.loads(form)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"must be JSON: {error}", location) from error


def _alternatives(form: object, location: str) -> str:
    """A Lark grammar that accepts each of several texts."""
    texts = array_at(location, form)
    if not texts or len(texts) > _MAX_CHOICES or not all(isinstance(text, str) and text for text in texts):
        raise InvalidRequest(f"must be an array of 1 to {_MAX_CHOICES} strings that are not empty", location)
    return "start: CHOICE\nCHOICE: " + " | ".join(dict.fromkeys(_lark_string(text, location) for text in texts))


def _lark_string(text: str, location: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest("has a lone surrogate", location) from error
    return json.dumps(text, ensure_ascii=False).replace("\x7f", r"\u007f")  # LLGuidance reads no plain U+007F
