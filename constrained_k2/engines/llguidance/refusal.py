"""Classifies why LLGuidance rejects a grammar, by the text of its error message.

"fuel exhausted when checking relevance of lexemes"     lexer: a grammar with cheaper patterns may compile
"grammar size (number of symbols) too big"              size: only a smaller schema compiles
"""

from typing import Literal

import llguidance

from constrained_k2.errors import ConstrainedK2Error

RefusalKind = Literal["lexer", "size", "other"]


class Refused(Exception):
    """LLGuidance rejects a grammar, or certainly would. ``kind`` names the limit that the grammar exceeds, if any."""

    def __init__(self, message: str, kind: RefusalKind = "other") -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def cause(self) -> str:
        """The first line of the message, for a client."""
        return (str(self).strip().splitlines() or ["unknown error"])[0][:300]


COMPILE_ERRORS = (ConstrainedK2Error, Refused, RecursionError)
"""The errors of a schema whose grammar does not compile."""
_DETAILS = "\n<state>"  # the state of the parser and the whole grammar follow
_NO_TEXT = "NoExtensionBias"


def refusal(message: str) -> Refused:
    """Return the error for one of LLGuidance's messages (1.7.6)."""
    said = message.partition(_DETAILS)[0].lower()
    kind: RefusalKind = "other"
    if "fuel" in said or "lexer" in said:
        kind = "lexer"
    elif "grammar size" in said or "parsertoocomplex" in said:
        kind = "size"
    return Refused(message, kind)


def has_no_text(matcher: llguidance.LLMatcher) -> bool:
    """Return True if a matcher has failed because no token may come next."""
    return matcher.is_error() and matcher.get_error().startswith(_NO_TEXT)


def grammar_of(lark: str) -> str:
    """Return a Lark grammar in the form that LLGuidance's matcher reads (1.7.6: unchanged).

    Raises:
        Refused: The grammar contains half of a surrogate pair.
    """
    try:
        return llguidance.LLMatcher.grammar_from_lark(lark)
    except ValueError as error:
        raise Refused(str(error)) from error
