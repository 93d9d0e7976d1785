"""xgrammar as a second grammar engine, for JSON arguments and JSON answers with a schema."""

from xgrammar import Grammar


def ebnf(structural_tag: str) -> str:
    """The EBNF text of a structural tag, which is JSON."""
    return str(Grammar.from_structural_tag(structural_tag))
