"""Reads a prompt or a completion that is made of tags: pure functions over its special tokens and texts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from constrained_k2.evaluation.doctor.prompt import Piece, Prompt
from constrained_k2.formats.kimi_k3 import ARGUMENT, CALL, CLOSE, JSON, OPEN, SEPARATOR, THINK
from constrained_k2.parsing.xtml import tag_content, tags


class Tag(NamedTuple):
    """The opening or the end of a tag."""

    closes: bool
    name: str
    attributes: Mapping[str, str]  # unescaped; empty if they are malformed


Part = Tag | Piece


@dataclass(slots=True)
class Argument:
    """An argument of a call, as it is written."""

    key: str
    type: str
    value: str = ""
    specials: list[str] = field(default_factory=list)  # special tokens in the value


@dataclass(slots=True)
class Call:
    """A call, as it is written."""

    name: str
    index: str
    arguments: list[Argument] = field(default_factory=list)
    raw: str | None = None  # the text of arguments that are not a JSON object
    is_closed: bool = False


def parts(prompt: Prompt) -> list[Part]:
    """The tags, and the texts and other special tokens between them."""
    found: list[Part] = []
    at = 0
    while at < len(prompt):
        piece, *rest = prompt[at : at + 3]
        is_tag = piece in ((OPEN, True), (CLOSE, True)) and len(rest) == 2 and rest[1] == (SEPARATOR, True)
        if is_tag and not rest[0].special:
            found.append(_tag(piece.text == CLOSE, rest[0].text))
            at += 3
        else:
            found.append(piece)
            at += 1
    return found


def calls(found: Iterable[Part]) -> list[Call]:
    """The calls in parts of a message or of a completion; the last one may be open."""
    made: list[Call] = []
    is_open, value = False, False
    for part in found:
        if isinstance(part, Tag) and part.name == CALL:
            if not part.closes:
                made.append(Call(part.attributes.get("tool", ""), part.attributes.get("index", "")))
            elif is_open:
                made[-1].is_closed = True
            is_open, value = not part.closes, False
        elif not is_open:
            continue
        elif isinstance(part, Piece):
            if value:
                _add(made[-1], part)
        elif part.name in (ARGUMENT, JSON):
            value = not part.closes
            if value and part.name == JSON:
                made[-1].raw = ""
            elif value:
                made[-1].arguments.append(Argument(part.attributes.get("key", ""), part.attributes.get("type", "")))
    return made


def opens_reasoning(prompt: Prompt) -> bool:
    """True if the prompt ends in the opening of the reasoning."""
    return parts(prompt)[-1:] == [Tag(closes=False, name=THINK, attributes={})]


def stray(prompt: Prompt) -> int:
    """The number of special tokens of tags that are not part of a tag; without one at the end, which may be cut off."""
    return sum(part in ((OPEN, True), (CLOSE, True), (SEPARATOR, True)) for part in parts(prompt)[:-2])


def _tag(closes: bool, body: str) -> Tag:  # noqa: FBT001 - what a tag does
    content = tag_content.read_tag(tags.Tag(closes, body, body))
    return Tag(
        closes, body.partition(" ")[0] if content is None else content.name, content.attributes if content else {}
    )


def _add(call: Call, piece: Piece) -> None:
    """Add a piece to the value that is open in a call."""
    if call.raw is not None:
        call.raw += piece.text
        return
    argument = call.arguments[-1]
    argument.value += piece.text
    if piece.special:
        argument.specials.append(piece.text)
