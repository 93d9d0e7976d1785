"""Draws sampled stacks as a flame graph in SVG: a box a frame, as wide as its share of the time."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape

from benchmarks.servers.stacks import OURS, Profile

_WIDTH, _ROW, _TITLE = 1600, 15, 28  # pixels
_LEAST = 4.0  # pixels of the narrowest box that is drawn
_LETTER = 6.2  # pixels of a character
_COLORS = {OURS: "#e8590c", "vllm": "#74c0fc", "": "#ced4da"}


@dataclass(slots=True)
class _Frame:
    name: str
    time: float = 0.0  # microseconds a step
    callees: dict[str, "_Frame"] = field(default_factory=dict)


def draw(profile: Profile, title: str) -> str:
    """Return the SVG: one flame for each process, ours in orange, vLLM's in blue, all else in grey."""
    root = _tree(profile)
    boxes = list(_boxes(root, _WIDTH / max(root.time, 1e-9), 0.0, 0))
    height = _TITLE + _ROW * (1 + max((depth for depth, _ in boxes), default=0))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="monospace" '
        'font-size="10">'
        f'<rect width="100%" height="100%" fill="#fff"/><text x="4" y="17" font-size="13">{escape(title)}</text>'
    )
    return "\n".join((head, *(box for _, box in boxes), "</svg>\n"))


def _tree(profile: Profile) -> _Frame:
    root = _Frame("all")
    for process, stacks in profile.items():
        for stack, time in stacks.items():
            frame = root
            frame.time += time
            for name in (process, *stack):
                frame = frame.callees.setdefault(name, _Frame(name))
                frame.time += time
    return root


def _boxes(root: _Frame, scale: float, left: float, depth: int) -> Iterator[tuple[int, str]]:
    """Yield the boxes of a frame's callees, each with its depth; ``scale`` is in pixels a microsecond."""
    for frame in sorted(root.callees.values(), key=lambda each: -each.time):
        width = frame.time * scale
        if width >= _LEAST:
            yield depth, _box(frame, left, depth, width)
            yield from _boxes(frame, scale, left, depth + 1)
        left += width


def _box(frame: _Frame, left: float, depth: int, width: float) -> str:
    function, _, file = frame.name.removesuffix(")").partition(" (")
    owner = next((owner for owner in (OURS, "vllm") if f"/{owner}/" in file), "")
    place = file.removeprefix("/")
    top = _TITLE + _ROW * depth
    name = function[: int((width - 4) / _LETTER)] if width > 4 * _LETTER else ""
    hint = f"{function} {place}: {frame.time:.0f} µs a step".replace("  ", " ")
    return (
        f'<g><title>{escape(hint)}</title><rect x="{left:.1f}" y="{top}" width="{width - 0.5:.1f}" height="{_ROW - 1}" '
        f'fill="{_COLORS[owner]}"/><text x="{left + 2:.1f}" y="{top + 11}">{escape(name)}</text></g>'
    )
