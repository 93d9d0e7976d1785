"""Texts that end a call's arguments soonest, by its schema. The mask decides whether one may be written.

Values take their shortest branch (``null`` of a linked list), objects get the required keys of the branch that lacks
the least, arrays end, strings get the shortest rest that their patterns and lengths demand. Numbers, if no multiple is
demanded, literals and the values of enums are left to the model.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from math import inf
from typing import Any, Protocol, Self, TypeVar

from constrained_k2.turn.drafts.guesses import spelled
from constrained_k2.turn.drafts.json_tracker import Expect, Frame, JsonTracker, unspelled
from constrained_k2.turn.drafts.multiples import multiple
from constrained_k2.turn.drafts.text_rests import MOST, matches, rests, rests_of_key
from constrained_k2.turn.drafts.ways import (
    Way,
    Ways,
    items,
    key_patterns,
    kinds,
    needed,
    options,
    properties,
    ways_of,
)

_LENGTH = 24  # about the length of the longest tokens in endings
_MAX_PIECES = 12
MAX_KEYS = 8  # to try at one place
_MAX_ORDERED = 32  # keys
_MAX_BEGINNINGS = 32  # of values
_FREE_ITEM = 4  # every so many items beyond the one that an array must contain are left to the model

_OPENINGS = {"string": '"', "object": "{", "array": "["}


def endings(tracker: JsonTracker) -> Iterator[str]:
    """Texts that may follow to end the arguments soonest, the best first. The tracker is left unchanged."""
    for piece in next_pieces(tracker):
        if piece:
            yield lengthened(tracker, piece, lambda ahead: next_pieces(ahead, known_only=True))


class Tracker(Protocol):
    """A position in a text, which can be followed ahead."""

    is_done: bool

    def copy(self) -> Self:
        """An independent copy."""

    def feed(self, text: str) -> None:
        """Advance over the next characters."""


_Tracker = TypeVar("_Tracker", bound=Tracker)


def lengthened(tracker: _Tracker, piece: str, demanded: Callable[[_Tracker], Iterable[str | int]]) -> str:
    """A piece with the text that follows it, as far as it is ``demanded``: none behind a marker's id."""
    ahead, text, first = tracker.copy(), piece, piece
    for _ in range(_MAX_PIECES):
        ahead.feed(piece)
        if ahead.is_done or len(text) >= _LENGTH:
            break
        # Append only what the schema demands: a text that is too short still works, a wrong one would be discarded.
        more = [piece for piece in demanded(ahead) if piece][:1]
        if not more or isinstance(more[0], int):
            break
        piece = more[0]
        text += piece
    return text[: max(_LENGTH, min(len(first), MOST))]


def next_pieces(tracker: JsonTracker, *, known_only: bool = False) -> Iterable[str]:
    """The next pieces to try, the best first; with ``known_only`` at most one, which the schema demands."""
    expect = tracker.expect
    if expect is Expect.COLON:
        return (":",)
    document = ways_of(tracker.frames[0].view.document if tracker.frames else tracker.value.document)
    containers = container_schemas(tracker, document)
    if expect in {Expect.VALUE, Expect.FIRST_ITEM, Expect.IN_STRING}:
        values = value_schemas(tracker, document, containers)
        constant = _constant(values, document)
        if expect is Expect.IN_STRING:
            ends = _ends_of_string(tracker.token, document.of(values), known_only=known_only)
            if constant.startswith(f'"{tracker.token}'):
                rest = (constant[1 + len(tracker.token) :],)
                return rest if known_only else chain(rest, ends)
            return ends
        opening = constant or _opening(document.of(values), document)
        contained = contained_beginnings(tracker, containers, document)
        if expect is Expect.VALUE:
            if contained and tracker.frames[-1].commas % _FREE_ITEM == 0:
                return ()  # an item of another kind is demanded as well
            return (opening,) if known_only else (*contained, opening)
        return (contained or ["]"])[:1] if known_only else (*contained, "]", opening)
    if not tracker.frames:
        return ()
    if not tracker.frames[-1].is_object:
        return ("]",) if known_only else ("]", *_rests_of_number(tracker, containers, document), ",")
    written = set(tracker.frames[-1].keys)
    found = possible_ways(document.of(containers), tracker.frames[-1])
    keys = missing_keys(found, written, document)
    others = [key for key in declared_keys(found, written) if key not in keys]
    keys, others = _by_refusal(keys, written), _by_refusal(others, written)
    demanded = next(iter(keys), "")
    if expect is Expect.IN_KEY:
        possible = [key for key in (*keys, *others) if key.startswith(tracker.token)]
        ends = [f'{key[len(tracker.token) :]}":' for key in possible][:MAX_KEYS]
        return ends[:1] if known_only else ends or _rests_of_key(tracker.token, found, written)
    separator = "" if expect in {Expect.KEY, Expect.FIRST_KEY} else ","
    if known_only:
        return (f'{separator}"{demanded}":',) if demanded else () if expect is Expect.KEY else ("}",)
    tried = [f'{separator}"{key}":' for key in [*keys, *others][:MAX_KEYS]] or [f'{separator}"']
    if expect is Expect.KEY:
        return tried
    return ["}", *_rests_of_number(tracker, containers, document), *tried]


def container_schemas(tracker: JsonTracker, document: Ways) -> list[Any]:
    """The schemas that the innermost open container, or else the whole text, may be an instance of."""
    schemas: list[Any] = [document.root]
    for frame in tracker.frames[:-1]:
        schemas = children(schemas, frame, document)
    return schemas


def value_schemas(tracker: JsonTracker, document: Ways, containers: list[Any]) -> list[Any]:
    """The schemas of the value that comes next or is being written."""
    if not tracker.frames:
        return containers
    return children(containers, tracker.frames[-1], document)


def children(schemas: list[Any], container: Frame, document: Ways) -> list[Any]:
    """The schemas of the latest value in a container, those of its shortest way first."""
    found = possible_ways(document.of(schemas), container)
    if container.is_object:
        return property_schemas(found, container.keys[-1] if container.keys else None)
    return list({id(schema): schema for way in found for schema in items(way)}.values())


def property_schemas(found: list[Way], key: str | None) -> list[Any]:
    """The schemas of a key's value in these ways of an object, in their order; the key as JSON without its quotes."""
    name = key
    if key is not None and "\\" in key:
        name = next((each for way in found for each in properties(way) if spelled(each) == key), key)
    schemas: list[Any] = []
    for way in found:
        declared = [properties(way)[name]] if name in properties(way) else []
        text = name if key is None or name != key or "\\" not in key else unspelled(key)
        if text is not None and (patterns := key_patterns(way)):
            declared += [schema for pattern, schema in patterns.items() if matches(pattern, text)]
        if declared:
            schemas += declared
        elif isinstance(way.get("additionalProperties"), dict):
            schemas.append(way["additionalProperties"])
    return list({id(schema): schema for schema in schemas}.values())


def possible_ways(found: list[Way], container: Frame) -> list[Way]:
    """The ways that a container's constants and keys so far leave; all if they leave none, as under a pattern."""

    def fits(way: Way) -> bool:
        declared = properties(way)
        if kinds(way) and ("object" if container.is_object else "array") not in kinds(way):
            return False
        closed = way.get("additionalProperties") is False and not key_patterns(way)
        if closed and not {*map(spelled, declared)}.issuperset(container.keys):
            return False
        return all(
            text in texts
            for key, text in container.scalars.items()
            if isinstance(declared.get(key), dict) and (texts := options(declared[key]))
        )

    return [way for way in found if fits(way)] or found


def _constant(schemas: list[Any], document: Ways) -> str:
    """The only value, as JSON, in the shortest way of the container: it chooses that way; empty if there are more."""
    found = document.of(schemas[:1])
    texts = options(found[0]) if len(found) == 1 else ()
    return texts[0] if len(texts) == 1 else ""


def _opening(found: list[Way], document: Ways) -> str:
    """The beginning of the shortest value; empty where the model is to choose."""
    if not found:
        return ""
    if texts := list(options(found[0])):
        return '"' if len(found) == 1 and all(text.startswith('"') for text in texts) else ""
    kind = document.shortest_kind(found[0])
    return multiple(found[0]) if kind in {"integer", "number"} else _OPENINGS.get(kind, "")


def contained_beginnings(tracker: JsonTracker, containers: list[Any], document: Ways) -> list[str]:
    """The beginnings of items that an open array must contain."""
    if not tracker.frames or tracker.frames[-1].is_object:
        return []
    schemas = [way["contains"] for way in document.of(containers) if "contains" in way]
    found = [way for way in document.of(schemas) if document.length(way) < inf]
    return beginnings(found, document)


def beginnings(found: list[Way], document: Ways) -> list[str]:
    """The beginnings of values, or whole ones: all that are listed, and one of each type."""
    texts: list[str] = []
    for way in found[:MAX_KEYS]:
        if listed := options(way):
            texts += listed
        else:
            lengths = document.lengths(way)
            number = multiple({"multipleOf": 1, **way})
            begun = {"integer": number, "number": number, "null": "null", "boolean": "true"} | _OPENINGS
            texts += [begun.get(kind, "") for kind in sorted(lengths or begun, key=lambda kind: lengths.get(kind, 0))]
    return [text for text in dict.fromkeys(texts) if text][:_MAX_BEGINNINGS]


def _rests_of_number(tracker: JsonTracker, containers: list[Any], document: Ways) -> list[str]:
    """The rests of multiples that the number being written may become."""
    if tracker.expect is not Expect.IN_SCALAR:
        return []
    texts = map(multiple, document.of(value_schemas(tracker, document, containers)))
    return [rest for text in texts if text.startswith(tracker.token) and (rest := text[len(tracker.token) :])]


def _ends_of_string(begun: str, found: list[Way], *, known_only: bool) -> Iterable[str]:
    texts = [options(way) for way in found if not kinds(way) or "string" in kinds(way)]
    ends = dict.fromkeys(text[1 + len(begun) :] for way in texts for text in way if text.startswith(f'"{begun}'))
    if ends and all(texts):
        yield from ends if len(ends) == 1 and begun else ()
        return
    yield '"'
    if not known_only:
        yield from ends
    if not known_only and (text := unspelled(begun)) is not None:
        yield from (spelled(rest) for rest in rests(text, found))


def missing_keys(found: list[Way], written: set[str], document: Ways) -> list[str]:
    """The required keys that are missing, of the way that lacks the least first; empty if the object may end."""
    lacking: list[tuple[float, list[str]]] = []
    names = {name for key in written if (name := unspelled(key)) is not None}
    for way in found:
        missing = [key for key in needed(way, names) if spelled(key) not in written]
        length = sum(len(key) + 4 + document.shortest(properties(way).get(key, True)) for key in missing)
        lacking.append((length, missing))
    lacking.sort(key=lambda entry: entry[0])
    if not lacking or not lacking[0][1]:
        return []
    return list(dict.fromkeys(spelled(key) for _, missing in lacking for key in missing))


def declared_keys(found: list[Way], written: set[str]) -> list[str]:
    """The declared keys that are missing."""
    keys = dict.fromkeys(spelled(key) for way in found for key in properties(way))
    return [key for key in keys if key not in written]


def _by_refusal(keys: list[str], written: set[str]) -> list[str]:
    """Keys in their order, but last those that others extend: these went on where the mask refused the key's end."""
    several = keys[:_MAX_ORDERED]
    return [*sorted(several, key=lambda key: any(other.startswith(key) for other in written)), *keys[_MAX_ORDERED:]]


def _rests_of_key(begun: str, found: list[Way], written: set[str]) -> Iterator[str]:
    """The rests of a key that begins as no declared one does."""
    text = unspelled(begun)
    others = [] if text is None else [begun + spelled(rest) for rest in rests_of_key(text, found)]
    yield from (f'{key[len(begun) :]}":' for key in others if key not in written)
    yield '":'
    yield from (key[len(begun) :] for key in others if key in written)
