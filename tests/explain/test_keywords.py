"""The names of what forbids a token: a closed set, all of it explained."""

from html import unescape

from constrained_k2.explain import keywords
from constrained_k2.explain.keywords import APPLICATORS, ASSERTIONS, OPENS_OBJECTS, OTHER_CAUSES
from constrained_k2.explain.page import to_html
from constrained_k2.explain.view import Token, TurnView, WantedToken
from constrained_k2.schema.keywords import KEYWORDS


def test_causes_are_apart_from_keywords() -> None:
    assert not OTHER_CAUSES.keys() & KEYWORDS.keys()
    assert KEYWORDS.keys() == APPLICATORS | ASSERTIONS
    assert OPENS_OBJECTS <= ASSERTIONS
    named = {value for name, value in vars(keywords).items() if name.isupper() and isinstance(value, str)}
    assert named == OTHER_CAUSES.keys()


def test_the_page_explains_every_cause() -> None:
    wanted = [
        WantedToken(number, "arguments", "f", "", (cause,), "x", "y", 0.5, 0.5)
        for number, cause in enumerate(OTHER_CAUSES)
    ]
    page = unescape(to_html(TurnView([Token("x")] * len(wanted), wanted, len(wanted)), "Title"))
    assert all(cause in page and meaning in page for cause, meaning in OTHER_CAUSES.items())
