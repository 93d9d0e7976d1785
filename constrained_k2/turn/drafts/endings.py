"""Texts that end a call's arguments soonest, by its schema. The mask decides whether one may be written.

Values take their shortest branch (``null`` of a linked list), objects get the required keys of the branch that lacks
the least, arrays end. Numbers, literals and the values of enums are left to the model.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, Self, TypeVar

from constrained_k2.turn.drafts.guesses import spelled
from constrained_k2.turn.drafts.json_tracker import Expect, Frame, JsonTracker
from constrained_k2.turn.drafts.ways import Way, Ways, items, kinds, options, properties, required, ways_of

_LENGTH = 24  # about the length of the longest tokens in endings
_MAX_PIECES = 12
MAX_KEYS = 8  # to try at one place
ENDS_OF_FORMATS = dict.fromkeys(("time", "date-time"), ('Z"',)) | dict.fromkeys(("email", "idn-email"), ('@a"', 'a"'))
ENDS_OF_FORMATS |= dict.fromkeys(("uri", "iri"), (':"', 'a"'))
"""By format, what leads to the end of strings whose other characters may go on without one."""

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


def lengthened(tracker: _Tracker, piece: str, demanded: Callable[[_Tracker], Sequence[str | int]]) -> str:
    """A piece with the text that follows it, as far as it is ``demanded``: none behind a marker's id."""
    ahead, text = tracker.copy(), piece
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
    return text[:_LENGTH]


def next_pieces(tracker: JsonTracker, *, known_only: bool = False) -> Sequence[str]:
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
            if constant.startswith(f'"{tracker.token}'):
                return (constant[1 + len(tracker.token) :],)
            return _ends_of_string(tracker.token, document.of(values), known_only=known_only)
        opening = constant or _opening(document.of(values), document)
        if expect is Expect.VALUE:
            return (opening,)
        return ("]",) if known_only else ("]", opening)
    if not tracker.frames:
        return ()
    if not tracker.frames[-1].is_object:
        return ("]",) if known_only else ("]", ",")
    written = set(tracker.frames[-1].keys)
    found = possible_ways(document.of(containers), tracker.frames[-1])
    keys = missing_keys(found, written, document)
    demanded = next(iter(keys), "")
    if expect is Expect.IN_KEY:
        return _rests_of_key(tracker.token, keys, found, written, known_only=known_only)
    separator = "" if expect in {Expect.KEY, Expect.FIRST_KEY} else ","
    if known_only:
        return (f'{separator}"{demanded}":',) if demanded else () if expect is Expect.KEY else ("}",)
    others = [key for key in declared_keys(found, written) if key not in keys]
    tried = [f'{separator}"{key}":' for key in [*keys, *others][:MAX_KEYS]] or [f'{separator}"']
    return tried if expect is Expect.KEY else ["}", *tried]


def container_schemas(tracker: JsonTracker, document: Ways) -> list[Any]:
    """The schemas that the innermost open container, or else the whole text, may be an instance of."""
    schemas: list[Any] = [document.root]
    for frame in tracker.frames[:-1]:
        schemas = _children(schemas, frame, document)
    return schemas


def value_schemas(tracker: JsonTracker, document: Ways, containers: list[Any]) -> list[Any]:
    """The schemas of the value that comes next or is being written."""
    if not tracker.frames:
        return containers
    return _children(containers, tracker.frames[-1], document)


def _children(schemas: list[Any], container: Frame, document: Ways) -> list[Any]:
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
        if name in properties(way):
            schemas.append(properties(way)[name])
        elif isinstance(way.get("additionalProperties"), dict):
            schemas.append(way["additionalProperties"])
    return list({id(schema): schema for schema in schemas}.values())


def possible_ways(found: list[Way], container: Frame) -> list[Way]:
    """The ways that a container's constants and keys so far leave; all if they leave none, as under a pattern."""

    def fits(way: Way) -> bool:
        declared = properties(way)
        if kinds(way) and ("object" if container.is_object else "array") not in kinds(way):
            return False
        if way.get("additionalProperties") is False and not {*map(spelled, declared)}.issuperset(container.keys):
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
    return _OPENINGS.get(document.shortest_kind(found[0]), "")


def _ends_of_string(begun: str, found: list[Way], *, known_only: bool) -> Sequence[str]:
    texts = [options(way) for way in found if not kinds(way) or "string" in kinds(way)]
    if texts and all(texts):
        rests = {text[1 + len(begun) :] for way in texts for text in way if text.startswith(f'"{begun}')}
        return tuple(rests) if len(rests) == 1 and begun else ()
    if known_only:
        return ('"',)
    formats = dict.fromkeys(name for way in found if isinstance(name := way.get("format"), str))
    return ('"', *(end for name in formats for end in ENDS_OF_FORMATS.get(name, ())))


def missing_keys(found: list[Way], written: set[str], document: Ways) -> list[str]:
    """The required keys that are missing, of the way that lacks the least first; empty if the object may end."""
    lacking: list[tuple[float, list[str]]] = []
    for way in found:
        missing = [key for key in required(way) if spelled(key) not in written]
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


def _rests_of_key(
    begun: str, keys: list[str], found: list[Way], written: set[str], *, known_only: bool
) -> Sequence[str]:
    """The rests of keys that have been begun: required ones, then declared ones; else the end of the key."""
    possible = dict.fromkeys((*keys, *declared_keys(found, written)))
    rests = [f'{key[len(begun) :]}":' for key in possible if key.startswith(begun)][:MAX_KEYS]
    return rests[:1] if known_only else rests or ('":',)
