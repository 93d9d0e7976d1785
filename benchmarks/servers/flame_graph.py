"""Draws sampled stacks as a flame graph in SVG: a box a frame, as wide as its share of the time."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape

from benchmarks.servers.stacks import OURS, Sampled, Stack

_WIDTH, _ROW, _TITLE = 1600, 15, 28  # pixels
_LEAST = 3.0  # pixels of the narrowest box that is drawn
_LETTER = 6.2  # pixels of a character
_COLORS = {OURS: "#e8590c", "vllm": "#74c0fc", "": "#ced4da"}


@dataclass(slots=True)
class _Frame:
    name: str
    count: int = 0
    callees: dict[str, "_Frame"] = field(default_factory=dict)


def draw(sampled: Sampled, title: str) -> str:
    """Return the SVG: one flame for each process, ours in orange, vLLM's in blue, all else in grey."""
    root = _tree(sampled.processes)
    boxes = list(_boxes(root, sampled, 0.0, 0))
    height = _TITLE + _ROW * (1 + max((depth for depth, _ in boxes), default=0))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="monospace" '
        'font-size="10">'
        f'<rect width="100%" height="100%" fill="#fff"/><text x="4" y="17" font-size="13">{escape(title)}</text>'
    )
    return "\n".join((head, *(box for _, box in boxes), "</svg>\n"))


def _tree(processes: Mapping[str, Counter[Stack]]) -> _Frame:
    root = _Frame("all")
    for process, stacks in processes.items():
        for stack, count in stacks.items():
            frame = root
            frame.count += count
            for name in (process, *stack):
                frame = frame.callees.setdefault(name, _Frame(name))
                frame.count += count
    return root


def _boxes(root: _Frame, sampled: Sampled, left: float, depth: int) -> Iterator[tuple[int, str]]:
    """Yield the boxes of a frame's callees, each with its depth."""
    scale = _WIDTH / max(1, sum(sum(stacks.values()) for stacks in sampled.processes.values()))
    for frame in sorted(root.callees.values(), key=lambda each: -each.count):
        width = frame.count * scale
        if width >= _LEAST:
            yield depth, _box(frame, sampled, left, depth, width)
            yield from _boxes(frame, sampled, left, depth + 1)
        left += width


def _box(frame: _Frame, sampled: Sampled, left: float, depth: int, width: float) -> str:
    function, _, file = frame.name.removesuffix(")").partition(" (")
    owner = next((owner for owner in (OURS, "vllm") if f"/{owner}/" in file), "")
    place = file.partition("site-packages/")[2] or file[file.find(f"/{OURS}/") + 1 :] if file else ""
    top = _TITLE + _ROW * depth
    name = function[: int((width - 4) / _LETTER)] if width > 4 * _LETTER else ""
    hint = f"{function} {place}: {sampled.microseconds(frame.count):.0f} µs a step".replace("  ", " ")
    return (
        f'<g><title>{escape(hint)}</title><rect x="{left:.1f}" y="{top}" width="{width - 0.5:.1f}" height="{_ROW - 1}" '
        f'fill="{_COLORS[owner]}"/><text x="{left + 2:.1f}" y="{top + 11}">{escape(name)}</text></g>'
    )
