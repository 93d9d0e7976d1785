"""Jinja templates of HTML pages that load nothing: escaped values, and a Content-Security-Policy."""

import base64
import hashlib
from collections.abc import Callable
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup


def templates_of(package: str | None, finalize: Callable[[Any], Any], **filters: Callable[[Any], Any]) -> Environment:
    """The templates beside a package's modules; ``finalize`` sees each value, before HTML's own escapes."""
    environment = Environment(
        loader=PackageLoader(package or "", "."),
        autoescape=select_autoescape(["html.j2"]),
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"digest": _digest, **filters}
    return environment


def _digest(text: str) -> Markup:
    """A source of a Content-Security-Policy: an inline style or script with this text."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Markup(f"'sha256-{digest}'")  # noqa: S704 - base64
