"""The names of what forbids a token: a closed set, all of it documented."""

from pathlib import Path

from constrained_k2.explain import keywords
from constrained_k2.explain.keywords import APPLICATORS, ASSERTIONS, OPENS_OBJECTS, OTHER_CAUSES
from constrained_k2.schema.keywords import KEYWORDS


def test_causes_are_apart_from_keywords() -> None:
    assert not OTHER_CAUSES.keys() & KEYWORDS.keys()
    assert APPLICATORS | ASSERTIONS == KEYWORDS.keys()
    assert OPENS_OBJECTS <= ASSERTIONS
    named = {value for name, value in vars(keywords).items() if name.isupper() and isinstance(value, str)}
    assert named == OTHER_CAUSES.keys()


def test_every_cause_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "explain.md").read_text("utf-8")
    assert [line for line in page.splitlines() if line.startswith("| ")][1:] == [
        f"| {cause} | {meaning} |" for cause, meaning in OTHER_CAUSES.items()
    ]
