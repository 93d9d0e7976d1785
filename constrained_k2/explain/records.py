"""Records of one masked row of logits, and of a token that was overridden there."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExaminedRow:
    """One masked row. Probabilities are those of temperature 1, before the mask.

    Attributes:
        position: The number of tokens of the turn before it.
        wanted: The likeliest one of the tokens that the mask forbids; any token if it forbids none that has a chance.
        is_overridden: True if ``wanted`` is the likeliest token of all.
        probability: The probability of ``wanted`` among all tokens; 0 if none is forbidden.
        forbidden: The probability of all forbidden tokens together.
        allowed: The number of allowed tokens.
    """

    position: int
    wanted: int
    is_overridden: bool
    probability: float
    forbidden: float
    allowed: int


@dataclass(frozen=True, slots=True)
class Place:
    """The place where a token is forbidden, with the reasons.

    Attributes:
        phase: The phase of the turn, a name of :class:`constrained_k2.turn.phases.Phase` in lower case.
        tool: The function that is called; empty outside of calls and of names not yet complete.
        pointer: JSON pointer (RFC 6901) into the arguments, or into an answer with a form, to the value that is being
            written, or to the object or array whose next key, comma or end is due; None outside of both.
        keywords: The schema's keywords that forbid the token: taken away, they would allow it. Or one of
            :data:`constrained_k2.explain.keywords.OTHER_CAUSES`. Empty if none was found within the limits.
    """

    phase: str
    tool: str
    pointer: str | None
    keywords: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Override:
    """A token that the mask kept the model from writing; or, in a contested row, one that sampling might have chosen.

    Attributes:
        row: The row of logits; contested if it is not overridden.
        written: The token at its place, as it was sampled.
        wanted_text: The text of ``row.wanted``; bytes that are not UTF-8 are replaced.
        written_text: The same of ``written``.
        place: Where, and why.
    """

    row: ExaminedRow
    written: int
    wanted_text: str
    written_text: str
    place: Place
