"""The number of examples at each level of tests, and the seed of random ones.

``scripts/test.sh`` sets the level in ``CONSTRAINED_K2_TESTS``. The seed changes with the commit, so that each landing
tries other examples; a run that fails prints it, and ``CONSTRAINED_K2_TESTS_SEED`` repeats it.
"""

import os
import subprocess
from pathlib import Path


def _level() -> str:
    named = os.environ.get("CONSTRAINED_K2_TESTS", "default")
    if named not in {"fast", "default", "all"}:
        raise ValueError(f"CONSTRAINED_K2_TESTS is {named!r}; set fast, default or all")
    return named


def _seed() -> int:
    """The commit's, 0 outside a clone."""
    if given := os.environ.get("CONSTRAINED_K2_TESTS_SEED"):
        return int(given)
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return int(found[:8] or "0", 16)


LEVEL = _level()
SEED = _seed()


def tries(default: int, *, fast: int | None = None, everything: int | None = None) -> int:
    """Return the number of examples, walks or rows at this level: an eighth of the default if fast, five times it if all."""
    if LEVEL == "fast":
        return fast if fast is not None else max(1, default // 8)
    if LEVEL == "all":
        return everything if everything is not None else 5 * default
    return default
