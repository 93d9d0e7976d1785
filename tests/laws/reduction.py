"""Makes JSON documents smaller while something stays true of them."""

import time
from collections.abc import Callable, Iterator
from typing import Any

Path = tuple[str | int, ...]
_MEANT = frozenset({"type", "$ref", "pattern", "format", "$schema"})  # whose texts have a meaning
_LEFT_OUT = object()


def reduced(document: Any, is_kept: Callable[[Any], bool], seconds: float = 40.0) -> Any:
    """The smallest document found within some seconds that is still kept; the document itself is."""
    until = time.monotonic() + seconds
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in _smaller(document):
            if time.monotonic() > until:
                return document
            if is_kept(candidate):
                document, is_smaller = candidate, True
                break
    return document


def _smaller(document: Any) -> Iterator[Any]:
    """Documents with one change, those that lose most first."""
    paths = sorted(_paths(document, ()), key=lambda path: (-_size(_at(document, path)), len(path)))
    for path in paths:
        value = _at(document, path)
        if isinstance(value, dict) and path:  # a subschema in the place of what holds it
            for child in value.values():
                inner = list(child.values()) if isinstance(child, dict) else child if isinstance(child, list) else []
                yield from (_with(document, path, one) for one in [child, *inner] if isinstance(one, dict))
        if path:
            yield _with(document, path)
    for path in paths:
        if path:
            yield from (_with(document, path, value) for value in _simpler(_at(document, path), path[-1]))


def _simpler(value: Any, key: str | int) -> Iterator[Any]:
    """Simpler texts and numbers, and shorter names of properties."""
    if isinstance(value, str) and len(value) > 1 and key not in _MEANT:
        yield from ("a", value[: len(value) // 2])
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        yield from (one for one in (0, 1, int(value / 2)) if abs(one) < abs(value))
    if isinstance(value, dict) and key == "properties":
        free = next((name for name in "abcdef" if name not in value), "z")
        for long in (name for name in value if len(name) != 1):
            yield {free if name == long else name: one for name, one in value.items()}


def _size(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(_size, value.values()))
    return 1 + sum(map(_size, value)) if isinstance(value, list) else 1


def _paths(value: Any, path: Path) -> Iterator[Path]:
    yield path
    if isinstance(value, dict):
        for key, child in value.items():
            yield from _paths(child, (*path, key))
    elif isinstance(value, list):
        for at, child in enumerate(value):
            yield from _paths(child, (*path, at))


def _at(document: Any, path: Path) -> Any:
    for part in path:
        document = document[part]
    return document


def _with(document: Any, path: Path, value: Any = _LEFT_OUT) -> Any:
    """The document with another value at a path, or without one."""
    if not path:
        return value
    copy, (first, *rest) = document.copy(), path
    if rest or value is not _LEFT_OUT:
        copy[first] = _with(document[first], tuple(rest), value)
    else:
        del copy[first]
    return copy
