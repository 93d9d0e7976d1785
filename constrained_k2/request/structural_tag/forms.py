"""msgspec types for the formats of xgrammar structural tags, as far as Kimi's tool calls use them."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec


class Form(msgspec.Struct, tag_field="type", forbid_unknown_fields=True):
    """One of xgrammar's formats, with the fields and defaults of ``xgrammar.structural_tag``."""


class JsonSchema(Form, tag="json_schema"):
    """A value that a schema accepts: as JSON, or as the blocks of Kimi K3's arguments."""

    json_schema: bool | dict[str, Any]
    style: Literal["json", "kimi_k3_xml"] = "json"
    any_order: bool = False
    max_whitespace_cnt: int | None = None
    excludes: tuple[str, ...] = ()


class Regex(Form, tag="regex"):
    """Text that matches a pattern."""

    pattern: str


class Text(Form, tag="const_string"):
    """One constant text."""

    value: str


class AnyText(Form, tag="any_text"):
    """Any text."""

    excludes: tuple[str, ...] = ()
    max_tokens: None = None
    max_chars: None = None


class Grammar(Form, tag="grammar"):
    """Text that a grammar accepts."""

    grammar: str


class Tag(Form, tag="tag"):
    """A format between two texts."""

    begin: str
    content: "AnyForm"
    end: str


class Sequence(Form, tag="sequence"):
    """Formats one after the other."""

    elements: "tuple[AnyForm, ...]"


class Or(Form, tag="or"):
    """One of several formats."""

    elements: "tuple[AnyForm, ...]"


class Optional(Form, tag="optional"):
    """A format, or nothing."""

    content: "AnyForm"


class Star(Form, tag="star"):
    """A format, any number of times."""

    content: "AnyForm"


class Plus(Form, tag="plus"):
    """A format, at least once."""

    content: "AnyForm"


class Tags(Form, tag="tags_with_separator"):
    """Several tags."""

    tags: tuple[Tag, ...]
    separator: Literal[""] = ""
    at_least_one: bool = False
    stop_after_first: bool = False


class TriggeredTags(Form, tag="triggered_tags"):
    """Any text, and tags in it."""

    triggers: tuple[str, ...]
    tags: tuple[Tag, ...]
    at_least_one: bool = False
    stop_after_first: bool = False
    excludes: tuple[str, ...] = ()


AnyForm = (
    JsonSchema | Regex | Text | AnyText | Grammar | Tag | Sequence | Or | Optional | Star | Plus | Tags | TriggeredTags
)


class _StructuralTag(msgspec.Struct, tag_field="type", tag="structural_tag", forbid_unknown_fields=True):
    format: AnyForm


def decode(tag: str | Mapping[str, Any]) -> Any:
    """The format of a structural tag.

    Raises:
        ValueError: It is not a structural tag, or has formats that no tag of Kimi's calls has.
        RecursionError: It is nested too deeply.
    """
    # Not by msgspec's decoder, which rounds integers of more than 64 bits in schemas.
    return msgspec.convert(json.loads(tag) if isinstance(tag, str) else tag, _StructuralTag).format


def excluded_texts(form: Form) -> Iterator[str]:
    """All texts that a format excludes from free text."""
    yield from getattr(form, "excludes", ())
    for name in form.__struct_fields__:
        value = getattr(form, name)
        for inner in value if isinstance(value, tuple) else (value,):
            if isinstance(inner, Form):
                yield from excluded_texts(inner)
