"""The texts that a document's schemas may demand where their ways do not tell which: words, patterns and multiples."""

from collections.abc import Iterator
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

_MAX_NODES = 20_000  # of a document, about 10 ms
_MAX_WORDS = 64
_MAX_PATTERNS = 8  # each costs some milliseconds at most
_LONGEST = 256  # characters
_LONGEST_NUMBER = 64
_BY_WORD = ("properties", "dependencies", "dependentRequired")


class Words:
    """The words and patterns of one document, the shortest first: keys and texts that it names."""

    def __init__(self, root: Any) -> None:
        words: dict[str, None] = {}
        patterns: dict[str, None] = {}
        for schema in _objects(root):
            named = [schema[key] for key in _BY_WORD if isinstance(schema.get(key), dict)]
            named += [schema[key] for key in ("required", "enum") if isinstance(schema.get(key), list)]
            named += [[schema["const"]]] if "const" in schema else []
            for texts in named:
                words.update(dict.fromkeys(text for text in texts if isinstance(text, str)))
            if isinstance(schema.get("pattern"), str):
                patterns[schema["pattern"]] = None
            if isinstance(schema.get("patternProperties"), dict):
                patterns.update(dict.fromkeys(schema["patternProperties"]))
        self.words = sorted((word for word in words if len(word) <= _LONGEST), key=len)[:_MAX_WORDS]
        self.patterns = sorted(patterns, key=len)[:_MAX_PATTERNS]


def _objects(root: Any) -> Iterator[dict[str, Any]]:
    """Every object of a document, up to a number of nodes."""
    left, count = [root], 0
    while left and count < _MAX_NODES:
        node, count = left.pop(), count + 1
        if isinstance(node, dict):
            yield node
            left += node.values()
        elif isinstance(node, list):
            left += node


def multiple(schema: dict[str, Any]) -> str:
    """A short multiple within the bounds, as JSON; empty if no multiple is demanded or none is found."""
    unit = _number(schema, "multipleOf")
    if unit is None or unit <= 0:
        return ""
    least, most = _number(schema, "minimum"), _number(schema, "maximum")
    above, below = _number(schema, "exclusiveMinimum"), _number(schema, "exclusiveMaximum")
    try:
        low = _nearest(least if above is None else above, unit, ROUND_CEILING)
        high = _nearest(most if below is None else below, unit, ROUND_FLOOR)
        if low is not None and (low == above or schema.get("exclusiveMinimum") is True):
            low += unit
        if high is not None and (high == below or schema.get("exclusiveMaximum") is True):
            high -= unit
        found = low if low is not None and low > 0 else high if high is not None and high < 0 else Decimal(0)
        text = format(found.normalize(), "f") if abs(found.adjusted()) < _LONGEST_NUMBER else ""
    except ArithmeticError:
        return ""
    return text if len(text) <= _LONGEST_NUMBER else ""


def _number(schema: dict[str, Any], key: str) -> Decimal | None:
    value = schema.get(key)
    return Decimal(str(value)) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _nearest(bound: Decimal | None, unit: Decimal, rounding: str) -> Decimal | None:
    """The multiple that is nearest to a bound, on the side that ``rounding`` names."""
    return None if bound is None else (bound / unit).to_integral_value(rounding=rounding) * unit
