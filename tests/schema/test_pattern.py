"""Splitting leading look-ahead, without an engine."""

import re

import pytest

from constrained_k2.schema.ecma import syntax_problem
from constrained_k2.schema.pattern import PatternParts, parts_of


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
        ("^(?=a)?b", ("^(?=a)?b",), ()),  # the look-ahead may be left out
    ],
)
def test_leading_look_ahead_is_split(pattern: str, found: tuple[str, ...], absent: tuple[str, ...]) -> None:
    assert parts_of(pattern) == PatternParts(found, absent)
    if not syntax_problem(pattern):
        for text in ("", "a", "ab", "b", "c", "x", "admin", "admins", "Passw0rd", "password1", ")x", "ac", "bc"):
            apart = all(re.search(part, text) for part in found) and not any(re.search(part, text) for part in absent)
            assert bool(re.search(pattern, text)) == apart, text
