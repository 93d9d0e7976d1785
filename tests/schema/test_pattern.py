"""Splitting leading look-ahead, and the syntax check, without an engine."""

import re

import pytest

from constrained_k2.schema.pattern import PatternParts, is_regex, parts_of


@pytest.mark.parametrize(
    ("pattern", "found", "absent"),
    [
        ("^a$", ("^a$",), ()),
        ("^(?=.*[A-Z])(?=.*\\d).{8,}$", ("^.*[A-Z]", "^.*\\d", "^.{8,}$"), ()),
        ("^(?!admin$|root$)[a-z]+$", ("^[a-z]+$",), ("^(?:admin$|root$)",)),
        ("^(?=a|b)c", ("^(?:a|b)", "^c"), ()),
        ("^(?!x)", (), ("^x",)),
        ("^(?=[)(])x", ("^[)(]", "^x"), ()),
        ("^(?=a)b|c", ("^(?=a)b|c",), ()),  # the anchor is of the first alternative only
        ("a(?!b)", ("a(?!b)",), ()),
        ("^(?=a", ("^(?=a",), ()),
    ],
)
def test_leading_look_ahead_is_split(pattern: str, found: tuple[str, ...], absent: tuple[str, ...]) -> None:
    assert parts_of(pattern) == PatternParts(found, absent)
    if is_regex(pattern):
        for text in ("", "a", "ab", "b", "c", "x", "admin", "admins", "Passw0rd", "password1", ")x", "ac", "bc"):
            apart = all(re.search(part, text) for part in found) and not any(re.search(part, text) for part in absent)
            assert bool(re.search(pattern, text)) == apart, text


@pytest.mark.parametrize(
    "pattern", ["\\p{L}+", "(?<year>\\d{4})\\k<year>", "\\u{1F600}", "\\cA", "a{2,3}?", "(?:a|b)*"]
)
def test_valid_patterns(pattern: str) -> None:
    assert is_regex(pattern)


@pytest.mark.parametrize("pattern", ["(", "[", "a{2,1}", "*", "(?P<n>a"])
def test_invalid_patterns(pattern: str) -> None:
    assert not is_regex(pattern)
