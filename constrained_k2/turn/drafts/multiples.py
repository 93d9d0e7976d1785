"""Short numbers that ``multipleOf`` and bounds demand: ``1.25`` of ``{"multipleOf": 0.25, "exclusiveMinimum": 1}``."""

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

_LONGEST_NUMBER = 64


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
