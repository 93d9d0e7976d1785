"""Parses an XTML tag's name and attributes for the tolerant parser: in any order, with any blanks."""

import re
from typing import NamedTuple

from constrained_k2.formats.kimi_k3 import CALL, MESSAGE, TOOLS, escape, unescape
from constrained_k2.parsing.xtml.tags import BLANKS, Tag

_ATTRIBUTE = rf'(\w+)[{BLANKS}]*=[{BLANKS}]*"([^"]*)"'
_ATTRIBUTES = re.compile(_ATTRIBUTE)
_BODY = re.compile(rf"[{BLANKS}]*(\w+)((?:[{BLANKS}]+{_ATTRIBUTE})*)[{BLANKS}]*")


class TagContent(NamedTuple):
    """A tag's name and attributes."""

    name: str
    attributes: dict[str, str]  # unescaped, in their order
    recoveries: list[str]  # the recoveries that were needed to read the tag


def read_tag(tag: Tag) -> TagContent | None:
    """Read a tag; None if it is malformed. If an attribute is repeated, the last one counts."""
    found = _BODY.fullmatch(tag.body)
    if found is None:
        return None
    pairs = _ATTRIBUTES.findall(found[2])
    exact = found[1] + "".join(f' {key}="{value}"' for key, value in pairs)
    recoveries = ["blanks"] if tag.body != exact else []
    if len(dict(pairs)) < len(pairs) or any(escape(unescape(value)) != value for _, value in pairs):
        recoveries.append("attributes")
    return TagContent(found[1], {key: unescape(value) for key, value in pairs}, recoveries)


def ends_call(tag: Tag, content: TagContent | None) -> bool:
    """True for a tag that no call contains: the next call's tag, or the end of all calls or of the message."""
    return content is not None and content.name in ((TOOLS, MESSAGE) if tag.closes else (CALL,))
