"""xgrammar as a second engine, for JSON arguments and answers; converts structural tags to EBNF."""

from xgrammar import Grammar


def ebnf(structural_tag: str) -> str:
    """The EBNF text of a structural tag, which is JSON."""
    return str(Grammar.from_structural_tag(structural_tag))
