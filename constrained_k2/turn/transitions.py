"""The marker sequences that lead from one phase of a turn to the next, and the tokens allowed in them.

Between text and a call header, Kimi K2 writes <|tool_calls_section_begin|><|tool_call_begin|>: after the first marker,
only the second may follow. Kimi K3's sequences contain text too, in any tokenization: <|open|>tools<|sep|>.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from constrained_k2.formats.phases import Phase
from constrained_k2.vocabulary.bitmask import TokenSet
from constrained_k2.vocabulary.vocabulary import Vocabulary


class TransitionSuffix(NamedTuple):
    """The rest of a transition (a marker sequence): marker ids and bytes of literal text, and the phase after it."""

    pieces: tuple[int | bytes, ...]
    to: Phase


@dataclass(frozen=True, slots=True, eq=False)
class TransitionTokens:
    """A state within a transition, or within several with a common prefix. Constant, and shared by all turns.

    Attributes:
        tokens: The allowed tokens: markers, and ordinary tokens that are prefixes of the literal text.
        after: Allowed token -> the state after it, or the next phase if the transition is complete.
        forced: The canonical next token if all transitions continue with the same piece, else None. Each piece is
            encoded alone.
    """

    tokens: TokenSet
    after: "Mapping[int, TransitionTokens | Phase]"
    forced: int | None


class Transitions:
    """The transitions of a vocabulary's format, interned: requests of all kinds share equal states."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._states: dict[frozenset[TransitionSuffix], TransitionTokens] = {}

    def moves(self, suffixes: Iterable[TransitionSuffix]) -> dict[int, TransitionTokens | Phase]:
        """First token of one of these transitions -> the state after it, or the next phase."""
        rests: dict[int, set[TransitionSuffix]] = {}
        for suffix in suffixes:
            for token_id, rest in _steps(suffix, self.vocabulary):
                rests.setdefault(token_id, set()).add(rest)
        return {token_id: self._after(frozenset(each)) for token_id, each in rests.items()}

    def _after(self, rests: frozenset[TransitionSuffix]) -> TransitionTokens | Phase:
        ends = [rest.to for rest in rests if not rest.pieces]
        if ends:
            assert len(rests) == 1, "a transition begins with all of another one"
            return ends[0]
        found = self._states.get(rests)
        if found is None:
            after = self.moves(rests)
            found = TransitionTokens(TokenSet(after, self.vocabulary.size), after, _canonical(rests, self.vocabulary))
            self._states[rests] = found
        return found


def _steps(suffix: TransitionSuffix, vocabulary: Vocabulary) -> Iterable[tuple[int, TransitionSuffix]]:
    """Each token that may come next in a transition, and the rest of the transition after it."""
    piece, *others = suffix.pieces
    if isinstance(piece, int):
        yield piece, TransitionSuffix(tuple(others), suffix.to)
        return
    for end in range(1, len(piece) + 1):
        token_id = vocabulary.find(piece[:end])
        if token_id is not None:
            rest = (piece[end:], *others) if end < len(piece) else tuple(others)
            yield token_id, TransitionSuffix(rest, suffix.to)


def _canonical(rests: frozenset[TransitionSuffix], vocabulary: Vocabulary) -> int | None:
    pieces = {rest.pieces[0] for rest in rests}
    if len(pieces) > 1:
        return None
    piece = pieces.pop()
    return piece if isinstance(piece, int) else vocabulary.encode(piece.decode())[0]
