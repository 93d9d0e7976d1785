"""Proposes short suffixes with which a string or key probably satisfies a pattern, format or length.

There is a proposal for each shape that the string may have. If the mask rejects one after some characters, the next one
is tried.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any

from constrained_k2.grammar.patterns.characters import Untranslatable
from constrained_k2.grammar.patterns.completions import shortest_suffix, without_assertions
from constrained_k2.grammar.patterns.states import PatternStates, TooManyStates
from constrained_k2.grammar.patterns.tree import Items
from constrained_k2.schema.shapes import String
from constrained_k2.schema.string_formats import FORMATS, patterns_of

MOST = 128  # max characters proposed at once: hardly a token has more
_PATTERNS = 256  # max cached patterns
_RESTS = 1024  # max cached suffixes
_TEXTS = 32  # max texts whose state is cached, per pattern
_FORMAT_SCALE = 16  # a format's pattern has more states, so its limits are this many times higher
_OF_FORMATS = frozenset(patterns_of(FORMATS))
_FILLERS = "-a"  # vocabularies have long runs of "-" as one token; most strings allow "a"


class _Pattern:
    """One pattern, with its assertions removed, as an automaton over characters; caches the states of texts."""

    def __init__(self, pattern: Items, scale: int) -> None:
        self.states = PatternStates(pattern, scale, is_metered=False)
        self._latest: deque[tuple[str, int]] = deque(maxlen=_TEXTS)

    def after(self, text: str) -> int:
        """The automaton's state after a text."""
        known = (each for each in self._latest if text.startswith(each[0]))
        begun, state = max(known, key=lambda each: len(each[0]), default=("", self.states.start))
        if len(begun) < len(text):
            for character in text[len(begun) :]:
                state = self.states.after(state, character)
            self._latest.append((text, state))
        return state


_lock = Lock()
_patterns: OrderedDict[str, _Pattern | None] = OrderedDict()  # None for a pattern that cannot be tracked
_known: OrderedDict[tuple[Any, ...], str | None] = OrderedDict()  # (least length, states) -> suffix


def _tracked(patterns: Iterable[str]) -> list[_Pattern]:
    """The patterns whose states can be tracked."""
    found: list[_Pattern] = []
    for pattern in patterns:
        if pattern not in _patterns:
            _patterns[pattern] = None
            with suppress(TooManyStates, Untranslatable, RecursionError):
                scale = _FORMAT_SCALE if pattern in _OF_FORMATS else 1
                _patterns[pattern] = _Pattern(without_assertions(pattern), scale)
            if len(_patterns) > _PATTERNS:
                _patterns.popitem(last=False)
        if (known := _patterns[pattern]) is not None:
            found.append(known)
    return found


def _rest(text: str, group: Sequence[str], least: int = 0) -> str | None:
    """A shortest suffix, of at least ``least`` characters, with which a text matches all patterns; None if unknown."""
    with _lock:
        try:
            states = [(each.states, each.after(text)) for each in _tracked(group)]
            key = (least, *states)
            if key not in _known:
                _known[key] = shortest_suffix(states, least) if states else None
                if len(_known) > _RESTS:
                    _known.popitem(last=False)
            return _known[key]
        except (TooManyStates, Untranslatable, RecursionError):
            for pattern in group:
                _patterns.pop(pattern, None)  # earlier texts may have used up the pattern's limit of states: start anew
    return None


def suffixes(text: str, found: Iterable[String]) -> Iterator[str]:
    """Suffixes that complete a started string to one of the shapes ``found``, best first."""
    fillers: list[str] = []
    for shape in found:
        missing = max(0, min(shape.shortest - len(text), MOST))
        if rest := _rest(text, [*patterns_of(shape.formats), *sorted(shape.patterns)], missing):
            yield rest
        fillers += [filler * missing for filler in _FILLERS if missing]
    yield from fillers


def suffixes_of_key(text: str, patterns: Iterable[Sequence[str]]) -> Iterator[str]:
    """Suffixes with which a key matches all patterns of some group; the suffix is empty if the key already does."""
    yield from (rest for group in patterns if (rest := _rest(text, group)) is not None)
