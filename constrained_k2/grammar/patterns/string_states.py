"""Builds DFAs of the strings that a schema allows: patterns, formats, lengths, excluded values.

Prefixes in one state have equal continuations.

{"pattern": "^a", "maxLength": 9}      after ab and after ac: one state
"""

import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable
from math import inf
from typing import Any

from constrained_k2.grammar.patterns.characters import Untranslatable
from constrained_k2.grammar.patterns.states import PatternStates, TooManyStates, of_format
from constrained_k2.schema.shapes import ListedValue, Shape, String
from constrained_k2.schema.string_formats import patterns_of

_NEAR = 64  # characters: few tokens have more
_MAX_PATTERNS, _MAX_PATTERN_TEXT = 64, 4000  # max patterns, and their characters, of all shapes: read in one step, 5 ms
_MAX_STATES = 1024  # max states of one node's strings
_MAX_STEPS = 64  # max cached steps from one state
_STATE_BYTES = 1000  # estimated size of a state and its steps
_SHAPES_BYTES = 1000  # estimated size of shapes whose strings are not tracked
_MAX_TEXT = 256  # max characters of a state's text


class StringState:
    """A DFA state of the strings of one node.

    Attributes:
        parts: The facts on which the continuations depend.
        text: A text that leads to this state; None if it is not known, or long.
        representative: The state whose mask this one shares, often itself; None if it is unlikely to recur.
    """

    __slots__ = ("next", "owner", "parts", "representative", "text")

    def __init__(self, owner: "StringStates", parts: tuple[Any, ...], text: str | None = None) -> None:
        self.owner = owner
        self.parts = parts
        self.text = text
        self.representative: StringState | None = self
        self.next: dict[str, StringState | None] = {}

    @property
    def is_listed(self) -> bool:
        """True if a listed or an excluded value begins with the text so far."""
        return self.parts[0] is not None

    def after(self, text: str) -> "StringState | None":
        """Return the state after more characters that the grammar allows; None if it is not tracked."""
        if self.owner.counts_only:
            return self.owner.longer(self, len(text))
        state: StringState | None = self
        for character in text:
            if state is None:
                return None
            known = state.next
            if character in known:
                state = known[character]
                continue
            state = state.owner.after(state, character)
            if len(known) < _MAX_STEPS:
                known[character] = state
        return state


class _Alternative:
    """One shape of a node's strings, with the DFAs of its patterns."""

    def __init__(self, shape: String) -> None:
        self.shape = shape
        own = [(PatternStates(pattern), True) for pattern in sorted(shape.patterns)]
        own += [(PatternStates(pattern), False) for pattern in sorted(shape.absent)]
        self.patterns = [*own, *((of_format(pattern), True) for pattern in patterns_of(shape.formats))]
        self.own = [pattern for pattern, _ in own]
        # Max characters that complete any prefix of a string of this shape; None if unknown.
        self.span = sum(pattern.span for pattern, _ in self.patterns) if len(self.patterns) < 2 else None
        if shape.absent or shape.excluded:
            self.span = None

    def start(self) -> Any:
        """Return this shape's part of the state before the first character."""
        return self._live(0, tuple(pattern.start for pattern, _ in self.patterns))

    def after(self, part: Any, character: str) -> Any:
        """Return this shape's part of the state after one more character; None if no string has this prefix."""
        if part is None:
            return None
        count, states = part
        pairs = zip(self.patterns, states, strict=True)
        return self._live(count + 1, tuple(pattern.after(state, character) for (pattern, _), state in pairs))

    def longer(self, part: Any, more: int) -> Any:
        """Return this shape's part of the state after more characters, if the shape has only lengths."""
        return None if part is None else self._live(part[0] + more, ())

    def key(self, part: Any, lengths: tuple[int, ...]) -> Any:
        """Return a key that states with equal masks share. Raises TooManyStates if the mask would hardly recur.

        Far from ``maxLength``, the key omits the exact length: token lengths are few, so many lengths have equal masks.
        """
        if part is None or self.shape.longest is None or (rest := self.shape.longest - part[0]) <= _NEAR:
            return part
        if self.patterns:
            span, is_short = self.span, part[0] < self.shape.shortest
            if (
                span is None
                or is_short
                or rest <= _NEAR + span
                or any(0 <= rest - length <= span for length in lengths)
            ):
                raise TooManyStates
        return min(part[0], self.shape.shortest), part[1], bisect_right(lengths, rest)

    def _live(self, count: int, states: tuple[int, ...]) -> Any:
        shortest, longest = self.shape.shortest, self.shape.longest
        pairs = zip(self.patterns, states, strict=True)
        if longest is None:
            count = min(count, shortest)
        elif count > longest:
            return None
        return (
            None
            if any(pattern.is_decided(state) is (not wanted) for (pattern, wanted), state in pairs)
            else (count, states)
        )


class StringStates:
    """The DFA of the strings of one node, over unescaped text, for all of the node's shapes at once.

    Args:
        shapes: The strings that the node allows.
        lengths: The numbers of characters above 64 that a token may add to a string, sorted.
        charge: Called with the estimated bytes that the states have grown by.

    Attributes:
        start: The state before the first character.
        is_mixed: True if some shapes allow any spelling, and others only one: an escaped slash continues only strings
            of the former.
    """

    def __init__(self, shapes: Iterable[Shape], lengths: tuple[int, ...], charge: Callable[[int], None]) -> None:
        shapes = list(shapes)
        patterns = [
            pattern for shape in shapes if isinstance(shape, String) for pattern in (*shape.patterns, *shape.absent)
        ]
        if len(patterns) > _MAX_PATTERNS or sum(map(len, patterns)) > _MAX_PATTERN_TEXT:
            raise TooManyStates
        self._alternatives = [_Alternative(shape) for shape in shapes if isinstance(shape, String)]
        excluded = (each.shape.excluded for each in self._alternatives)
        values = (shape.value for shape in shapes if isinstance(shape, ListedValue))
        self._listed = sorted({value for value in values if isinstance(value, str)}.union(*excluded))
        self.counts_only = not self._listed and not any(each.patterns for each in self._alternatives)
        free = sum(
            each.shape == String(shortest=each.shape.shortest, longest=each.shape.longest)
            for each in self._alternatives
        )
        self.is_mixed = bool(free) and (free < len(self._alternatives) or bool(self._listed))
        self._lengths = lengths
        self._charge = charge
        self._charged = 0
        self._states: dict[tuple[Any, ...], StringState] = {}
        self._representatives: dict[tuple[Any, ...], StringState] = {}
        self.start = self._state((self._beginning(""), *(each.start() for each in self._alternatives)), "")

    def after(self, state: StringState, character: str) -> StringState | None:
        """Return the state after one more character; None if it is not tracked."""
        beginning, *parts = state.parts
        if beginning is not None:
            beginning = self._beginning(beginning + character)
        try:
            after = [each.after(part, character) for each, part in zip(self._alternatives, parts, strict=True)]
            text = None if state.text is None or len(state.text) >= _MAX_TEXT else state.text + character
            return self._state((beginning, *after), text)
        except (TooManyStates, Untranslatable, RecursionError):
            return None

    def longer(self, state: StringState, more: int) -> StringState | None:
        """Return the state after more characters if only their number counts; most such states are not cached.

        None if it is not tracked.
        """
        parts = (
            None,
            *(each.longer(part, more) for each, part in zip(self._alternatives, state.parts[1:], strict=True)),
        )
        try:
            return self._states.get(parts) or self._state(parts)
        except TooManyStates:
            return None

    def _beginning(self, text: str) -> str | None:
        """Return the text if a listed or an excluded value begins with it, else None."""
        place = bisect_left(self._listed, text)
        return text if place < len(self._listed) and self._listed[place].startswith(text) else None

    def forget(self) -> None:
        """Charge for no more states, and refund all charges so far."""
        charge, self._charge = self._charge, lambda _: None
        charge(-self._charged)

    def _state(self, parts: tuple[Any, ...], text: str | None = None) -> StringState:
        state = self._states.get(parts)
        if state is None:
            if len(self._states) >= _MAX_STATES:
                raise TooManyStates
            state = StringState(self, parts, text)
            try:
                pairs = zip(self._alternatives, parts[1:], strict=True)
                key = (parts[0], *(each.key(part, self._lengths) for each, part in pairs))
            except TooManyStates:
                state.representative = None
            else:
                if key != parts:
                    state.representative = self._representatives.setdefault(key, StringState(self, key))
                if key != parts and self.counts_only:
                    return state
            state = self._states.setdefault(parts, state)
            spent = _STATE_BYTES * len(self._states) + sum(
                own.cost_bytes for each in self._alternatives for own in each.own
            )
            grown, self._charged = spent - self._charged, spent
            self._charge(grown)
        return state


class KnownStrings:
    """The DFAs of strings and keys, by their shapes; the nodes of all grammars share them. Thread-safe.

    Args:
        lengths: As :class:`StringStates` takes them.
        charge: Called with the estimated bytes of new states; negative for states that are dropped.
        budget: Estimated bytes of all states; over it, the shapes that were used least recently are dropped.
        dropped: Called with shapes whose states are dropped.
    """

    def __init__(
        self,
        lengths: tuple[int, ...],
        charge: Callable[[int], None],
        budget: float = inf,
        dropped: Callable[[tuple[Shape, ...]], None] = lambda _: None,
    ) -> None:
        self._lengths, self._charge, self._budget = lengths, charge, budget
        self._dropped = dropped
        self._known: OrderedDict[tuple[Shape, ...], StringStates | None] = OrderedDict()
        self._charged = 0
        self._lock = threading.RLock()

    def start(self, shapes: tuple[Shape, ...]) -> StringState | None:
        """Return the state before the first character of a string with one of ``shapes``; None if not tracked."""
        if not shapes:
            return None
        with self._lock:
            if shapes in self._known:
                self._known.move_to_end(shapes)
                states = self._known[shapes]
            else:
                states = self._known[shapes] = self._made(shapes)
                self._note(_SHAPES_BYTES)
                while self._charged > self._budget and len(self._known) > 1:
                    self._drop(*self._known.popitem(last=False))
        return None if states is None else states.start

    def clear(self) -> None:
        """Drop all states; a caller that still has a state may continue from it."""
        with self._lock:
            while self._known:
                self._drop(*self._known.popitem())

    def _made(self, shapes: tuple[Shape, ...]) -> StringStates | None:
        try:
            return StringStates(shapes, self._lengths, self._note)
        except (TooManyStates, Untranslatable, RecursionError):
            return None

    def _drop(self, shapes: tuple[Shape, ...], states: StringStates | None) -> None:
        self._note(-_SHAPES_BYTES)
        if states is not None:
            states.forget()
            self._dropped(shapes)

    def _note(self, more: int) -> None:
        with self._lock:
            self._charged += more
        self._charge(more)
