"""Tokenizes the bytes that LLGuidance forces in Kimi K3's XTML arguments, to get draft tokens."""

import re
from collections.abc import Callable, Iterator

_SPECIAL = re.compile(rb"(\xff\[[0-9]+\])")  # how LLGuidance writes a special token: its id in brackets
_ATTRIBUTE = re.compile(rb'( key| type)(=")([^"]*)("?)')


def forced_ids(text: bytes, tokenize: Callable[[bytes], list[int]]) -> list[int]:
    """Return the tokens of LLGuidance's forced bytes: the parts of an attribute are encoded one by one, as in prompts.

    At the end of ``text`` the tokenization depends on bytes that are not known yet, so the last token is left out.
    """
    ids: list[int] = []
    for part in _SPECIAL.split(text):
        if part.startswith(b"\xff"):
            ids.append(int(part[2:-1]))
        elif part:
            ids += (token for piece in _pieces(part) for token in tokenize(piece))
    is_whole = _SPECIAL.fullmatch(text, max(text.rfind(b"\xff"), 0)) is not None
    return ids if is_whole else ids[:-1]


def _pieces(text: bytes) -> Iterator[bytes]:
    end = 0
    for attribute in _ATTRIBUTE.finditer(text):
        yield from filter(None, (text[end : attribute.start()], *attribute.groups()))
        end = attribute.end()
    if end < len(text):
        yield text[end:]
