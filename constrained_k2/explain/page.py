"""Renders an explained turn as one HTML page that loads no other resources."""

import base64
import hashlib
from collections.abc import Callable
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from constrained_k2.explain.keywords import OTHER_CAUSES
from constrained_k2.explain.view import TurnView, by_place, percent, visible


def to_html(view: TurnView, title: str) -> str:
    """Render the page.

    Every value is escaped: first what could reorder or hide text (``visible``), then what HTML reads (autoescape).
    Should that ever fail, the page's policy allows no script and loads nothing.
    """
    environment = templates_of(__package__, _finalized, percent=percent)
    wanted = {each.position: each for each in view.overrides}
    contested = {each.position: each for each in view.contested}
    tokens = [
        (token, wanted.get(position), contested.get(position), view.alternatives[position] if view.alternatives else [])
        for position, token in enumerate(view.tokens)
    ]
    template = environment.get_template("page.html.j2")
    return template.render(view=view, title=title, tokens=tokens, rows=by_place(view), causes=OTHER_CAUSES)


def _finalized(value: Any) -> Any:
    return value if isinstance(value, Markup) else visible(str(value))


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
