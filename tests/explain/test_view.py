"""Explained turns as they are shown: whole, and harmless whatever a model or a server writes."""

import re
from html import unescape
from html.parser import HTMLParser
from math import exp
from typing import Any

import pytest

from constrained_k2.explain.keywords import APPLICATORS, ASSERTIONS, OPENS_OBJECTS, OTHER_CAUSES
from constrained_k2.explain.page import to_html
from constrained_k2.explain.terminal import show
from constrained_k2.explain.view import Alternative, Token, TurnView, WantedToken, by_place, percent, printable, visible
from constrained_k2.schema.keywords import KEYWORDS

HOSTILE = "\x1b[31m</span><script>alert(1)</script>\u202e\x07'\"&\ud800\n{{ 7 * 7 }}[bold]"


def override(position: int = 1, **fields: Any) -> WantedToken:
    given: dict[str, Any] = {
        "position": position, "phase": "arguments", "tool": "act", "pointer": "/u", "keywords": ("enum",),
        "wanted": "CEL", "written": "cel", "probability": 0.93, "forbidden": 0.951,
    }  # fmt: skip
    return WantedToken(**given | fields)


def view_of(*overrides: WantedToken, tokens: list[str] | None = None, other: str = "", **fields: Any) -> TurnView:
    texts = ['{"u":"', "cel", "sius", '"}'] if tokens is None else tokens
    listed = [Token(text, 1 if at == 2 else None if at == 3 else 40) for at, text in enumerate(texts)]
    alternatives = [[Alternative(other, exp(-2.0))]] * len(texts) if other else []
    return TurnView(listed, list(overrides), len(overrides), examined_rows=9, alternatives=alternatives, **fields)


class Texts(HTMLParser):
    """The texts, tags and styles of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.update(name for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_overrides_are_grouped_by_place() -> None:
    found = [
        override(0),
        override(1, wanted="KEL", probability=0.5),
        override(2, pointer="", keywords=("required",)),
        override(3),
    ]
    contested = [override(5, probability=0.2), override(6, pointer="/v", probability=0.1)]
    view = view_of(*found, contested=contested)
    shown = [(row.place, row.keywords, row.overridden, row.contested, row.probability) for row in by_place(view)]
    assert shown == [("/u", "enum", 3, 1, 0.93), ("(arguments)", "required", 1, 0, 0.93), ("/v", "enum", 0, 1, 0.1)]
    assert {row.change for row in by_place(view)} == {'"CEL" → "cel"'}
    assert view.summary() == "4 overridden of 9 examined; 1 of 4 tokens forced; 2 contested"


def test_the_terminal_shows_wanted_beside_written(capsys: pytest.CaptureFixture[str]) -> None:
    show(view_of(override()))
    said = capsys.readouterr().out
    assert '{"u":"[CEL→cel]sius"}' in said
    assert re.search(r"act +/u +enum +1 +0 +\"CEL\" → \"cel\" +93% +95%", said)
    show(view_of())
    assert "No token was overridden or contested." in capsys.readouterr().out


def hostile() -> TurnView:
    bad = override(tool=HOSTILE, pointer=f"/{HOSTILE}", keywords=(HOSTILE,), wanted=HOSTILE, written=HOSTILE)
    return view_of(bad, override(99), tokens=[HOSTILE, HOSTILE], other=HOSTILE)


def test_nothing_steers_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show(hostile())
    said = capsys.readouterr().out
    assert "\\x1b[31m" in said
    assert "[bold]" in said
    assert all(character.isprintable() or character == "\n" for character in said)


def test_nothing_breaks_the_page() -> None:
    page = to_html(hostile(), f"Title {HOSTILE}")
    texts = Texts(page)
    assert set(texts.tags) <= {"html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "div", "span", "del",
                               "ins", "b", "i", "code", "table", "thead", "tbody", "tr", "th", "td"}  # fmt: skip
    assert not {name for name in texts.attributes if name.startswith("on") or name in {"src", "href", "style"}}
    assert texts.text.count("<script>alert(1)</script>") >= 8
    assert "{{ 7 * 7 }}" in texts.text
    assert all(character.isprintable() or character == "\n" for character in page)
    assert "default-src 'none'" in page
    assert "script-src" not in page


def test_the_page_shows_alternatives_and_reasons() -> None:
    view = view_of(override(keywords=("unknown key",)), other="other")
    text = re.sub(r"\s+", " ", Texts(to_html(view, "Title")).text)
    for part in ("CELcel", "forbidden by unknown key at /u", "wanted CEL with 93%", "all forbidden tokens together: 95%",
                 "40 tokens allowed", "forced: no other token was allowed", "other14%", "does not declare"):  # fmt: skip
        assert part in text


def test_texts_of_people() -> None:
    assert visible("a\nb\t\x00é北") == "a↵\nb\\t\\x00é北"
    assert visible("a\u200f\u061c\u2066\x9b\ud800") == "a\\u200f\\u061c\\u2066\\x9b\\ud800"
    assert printable("a\n" * 3, 3) == "a\\na…"
    assert [percent(each) for each in (None, 0.5, 0.99, 0.999, 1.0)] == ["", "50%", "99%", "99.9%", "100.0%"]


def test_causes_are_apart_from_keywords() -> None:
    assert not OTHER_CAUSES.keys() & KEYWORDS.keys()
    assert KEYWORDS.keys() == APPLICATORS | ASSERTIONS
    assert OPENS_OBJECTS <= ASSERTIONS


def test_the_page_explains_every_cause() -> None:
    wanted = [override(number, keywords=(cause,)) for number, cause in enumerate(OTHER_CAUSES)]
    page = unescape(to_html(view_of(*wanted, tokens=["x"] * len(wanted)), "Title"))
    assert all(cause in page and meaning in page for cause, meaning in OTHER_CAUSES.items())


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({}, "/u"),
        ({"pointer": ""}, "(arguments)"),
        ({"phase": "answer", "tool": ""}, "/u"),
        ({"phase": "answer", "tool": "", "pointer": ""}, "(answer)"),
        ({"phase": "call_id", "pointer": None}, "call_id"),
    ],
)
def test_places(fields: dict[str, Any], place: str) -> None:
    assert override(**fields).place == place
