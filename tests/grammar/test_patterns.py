"""Patterns whose syntax differs between ECMA-262 and Python."""

import pytest

from constrained_k2.grammar.characters import Untranslatable
from constrained_k2.grammar.patterns import found_anywhere


@pytest.mark.parametrize("pattern", ["a{,}", "a{,3}"])
def test_a_repetition_without_a_lower_bound_is_refused(pattern: str) -> None:
    with pytest.raises(Untranslatable, match="has no lower count"):
        found_anywhere(pattern)


@pytest.mark.parametrize("pattern", ["a{,b}", "{,3x"])
def test_a_brace_without_a_repetition_is_text(pattern: str) -> None:
    assert found_anywhere(pattern).count(r"\x{7b}") == 1
