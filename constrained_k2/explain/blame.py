"""Finds the schema keywords that forbid a byte: without them the schema allows the byte."""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from constrained_k2.compiler.cache import LeastRecentlyUsed
from constrained_k2.compiler.shared import cache_key
from constrained_k2.explain.keywords import APPLICATORS, ASSERTIONS, OPENS_OBJECTS, Cause
from constrained_k2.explain.nodes import Level, Node, levels_of, schema_at
from constrained_k2.explain.position import Path, PathCursor
from constrained_k2.explain.subject import END, Exhausted, Removed, Subject
from constrained_k2.schema.keywords import KEYWORDS
from constrained_k2.schema.undeclared_keys import UndeclaredKeys

_MAX_REMEMBERED = 1024  # results are cached only for texts of at most this many symbols
_BLAME_BYTES, _MEMORY_BYTES = 1024, 4 << 20
_FIRST = frozenset({"uniqueItems"})  # tried first: removing its items' `type` would relax it, and blame `type`
_MAX_ALONE = 8  # subschemas of one value from which a keyword is removed one at a time


class Blame(NamedTuple):
    """The keywords to blame, and the length of the path to the value that they apply to."""

    keywords: tuple[str, ...]
    level: int


_remembered: LeastRecentlyUsed[tuple[Any, ...], Blame | None] = LeastRecentlyUsed(_MEMORY_BYTES)


class _Trial(NamedTuple):
    """Tests whether the schema allows a symbol after a text if some keywords are removed."""

    subject: Subject
    symbols: Sequence[int]
    symbol: int
    part: Level | None

    def is_freed_by(self, removed: Removed) -> bool:
        """True if the symbol is allowed without these keywords."""
        policy: UndeclaredKeys | None = "allow" if any(keyword in OPENS_OBJECTS for _, keyword in removed) else None
        return bool(self.subject.allows(self.symbols, self.symbol, removed, self.part, policy))


def find_blame(  # noqa: PLR0913, PLR0917 - where, and what
    subject: Subject,
    position: PathCursor,
    path: Path,
    symbols: Sequence[int],
    symbol: int,
    rest_of_key: Sequence[int] = (),
) -> Blame | None:
    """The keywords that forbid a symbol after a text; None if it stays forbidden after removing keywords.

    ``position`` is at the end of the text ``symbols``, ``path`` leads to the value that ``symbol`` belongs to. If this
    is a key, ``rest_of_key`` is the rest of the forbidden token up to the key's end. Raises ``Exhausted``.
    """
    levels = levels_of(subject.document, path, subject.budget.check)
    first, trial = _smallest(subject, position, levels, _Trial(subject, symbols, symbol, None))
    if len(trial.symbols) > _MAX_REMEMBERED:
        return _found(position, levels, first, trial, rest_of_key)
    key = (cache_key(subject.schema), subject.options, path, first, trial.symbol, *rest_of_key, "", *trial.symbols)

    def find() -> tuple[Blame | None, int]:
        return _found(position, levels, first, trial, rest_of_key), 8 * len(key) + _BLAME_BYTES

    return _remembered.get(key, find)


def _found(
    position: PathCursor, levels: list[Level], first: int, trial: _Trial, rest_of_key: Sequence[int]
) -> Blame | None:
    """The keywords to blame, searched from the innermost value outwards to level ``first``."""
    subject, innermost = trial.subject, len(levels) - 1
    if position.in_key and subject.policy == "forbid":
        *others, end = (trial.symbol, *rest_of_key)
        if subject.allows([*trial.symbols, *others], end, part=trial.part, policy="allow"):
            return Blame((Cause.UNKNOWN_KEY,), innermost)
    for kinds in (_FIRST, ASSERTIONS, APPLICATORS, KEYWORDS.keys()):
        groups = [(level, _groups(subject, levels[level], kinds)) for level in range(innermost, first - 1, -1)]
        for level, group in groups if len(kinds) < len(KEYWORDS) else ():
            found = {keyword: next(filter(trial.is_freed_by, removals), None) for keyword, removals in group.items()}
            freeing = {keyword: removed for keyword, removed in found.items() if removed}
            if freeing:
                return Blame(tuple(_in_live_branches(trial, position.text_of(level), levels[level], freeing)), level)
        together: dict[str, Removed] = {}
        for level, group in groups:
            for keyword, removals in group.items():
                together[keyword] = together.get(keyword, frozenset()) | removals[0]
            if len(together) > 1 and trial.is_freed_by(frozenset().union(*together.values())):
                return Blame(_fewest(trial, together), level)
    return None


def _smallest(subject: Subject, position: PathCursor, levels: list[Level], whole: _Trial) -> tuple[int, _Trial]:
    """The level of the innermost value whose schema alone forbids the symbol; else the whole arguments."""
    if subject.has_parts:
        for level in range(len(levels) - 1, 0, -1):
            text = position.text_of(level)
            if text is None or not any(node.is_sure for node in levels[level]):
                continue
            is_end = position.ends_scalar(whole.symbol) and level == len(levels) - 1
            trial = _Trial(subject, text, END if is_end else whole.symbol, levels[level])
            if subject.allows(trial.symbols, trial.symbol, part=trial.part) is False:
                return level, trial
    return 0, whole


def _groups(subject: Subject, level: Level, kinds: AbstractSet[str]) -> dict[str, list[Removed]]:
    """Keyword -> sets to remove: first the keyword in all subschemas of a value, then in each subschema alone."""
    found: dict[str, list[tuple[str, str]]] = {}
    for node in level:
        for keyword in schema_at(subject.document, node.pointer):
            if keyword in kinds:
                found.setdefault(keyword, []).append((node.pointer, keyword))
    return {keyword: list(_alternatives(places)) for keyword, places in found.items()}


def _alternatives(places: list[tuple[str, str]]) -> Iterator[Removed]:
    yield frozenset(places)
    if len(places) > 1:
        yield from (frozenset((place,)) for place in places[:_MAX_ALONE])


def _in_live_branches(
    trial: _Trial, text: bytes | None, level: Level, freeing: dict[str, Removed]
) -> dict[str, Removed]:
    """The keywords of branches that allow the text before the symbol; all keywords if there is no such branch.

    A branch that was ruled out long before would, without its keyword, also allow the symbol.
    """
    branches = {node.pointer for node in level if not node.is_sure}
    if len(freeing) == 1 or text is None or not trial.subject.has_parts:
        return freeing
    live = dict[str, bool]()
    try:
        for removed in freeing.values():
            for pointer in {pointer for pointer, _ in removed} - live.keys():
                part = (Node(pointer, is_sure=True),)
                live[pointer] = pointer not in branches or trial.subject.allows(text, END, part=part) is not None
    except Exhausted:
        return freeing
    kept = {key: removed for key, removed in freeing.items() if any(live[pointer] for pointer, _ in removed)}
    return kept or freeing


def _fewest(trial: _Trial, together: dict[str, Removed]) -> tuple[str, ...]:
    """A minimal subset of keywords whose joint removal allows the symbol; not minimal if the limits are reached."""
    needed = dict(together)
    try:
        for keyword in together:
            others = {name: removed for name, removed in needed.items() if name != keyword}
            if others and trial.is_freed_by(frozenset().union(*others.values())):
                needed = others
    except Exhausted:
        pass
    return tuple(needed)
