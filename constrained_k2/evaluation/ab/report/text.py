"""Text of models, servers and samples, made harmless for a page or a table."""

import re
from html import escape

_CONTROLS: dict[int, str] = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"}
_CONTROLS |= {0x7F: "\u2421"}
_CONTROLS |= {code: f"[U+{code:04X}]" for code in (*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))}
_MEANS_SOMETHING = re.compile(r"([\\`*_\[\]<>|#~&])")


def visible(text: str) -> str:
    """The same with a sign for what terminals obey, what turns the direction of writing, and lone surrogates."""
    return text.translate(_CONTROLS).encode("utf-8", "backslashreplace").decode()


def as_html(text: str) -> str:
    """Text that HTML shows as it is, between tags or in a quoted attribute."""
    return escape(visible(text))


def as_markdown(text: str) -> str:
    """Text that Markdown shows as it is, in one line."""
    return _MEANS_SOMETHING.sub(r"\\\1", " ".join(visible(text).split()))
