"""The number of examples at each level of tests. ``scripts/test.sh`` sets the level in ``CONSTRAINED_K2_TESTS``."""

import os


def _level() -> str:
    named = os.environ.get("CONSTRAINED_K2_TESTS", "default")
    if named not in {"fast", "default", "all"}:
        raise ValueError(f"CONSTRAINED_K2_TESTS is {named!r}; set fast, default or all")
    return named


LEVEL = _level()


def tries(default: int, *, fast: int | None = None, everything: int | None = None) -> int:
    """Return the number of examples, walks or rows at this level: a quarter of the default if fast, five times it if all."""
    if LEVEL == "fast":
        return fast if fast is not None else max(1, default // 4)
    if LEVEL == "all":
        return everything if everything is not None else 5 * default
    return default
