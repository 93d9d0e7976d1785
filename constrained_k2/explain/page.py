"""Renders an explained turn as one HTML page that loads no other resources."""

from typing import Any

from markupsafe import Markup

from constrained_k2.explain.keywords import OTHER_CAUSES
from constrained_k2.explain.templates import templates_of
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
