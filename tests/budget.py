"""How much a level of tests tries: ``--fast``, the default, or ``--all``; and the seed, which changes with the commit.

``scripts/test.sh`` names the level in ``CONSTRAINED_K2_TESTS``. ``CONSTRAINED_K2_SEED`` repeats a run's random draws.
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
    if given := os.environ.get("CONSTRAINED_K2_SEED"):
        return int(given)
    root = Path(__file__).parents[1]
    asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
    return int(asked.stdout[:7], 16) if asked.returncode == 0 else 0  # a source archive has no commit


LEVEL = _level()
SEED = _seed()


def tries(default: int, *, fast: int | None = None, everything: int | None = None) -> int:
    """How many examples, walks or rows this level takes: a quarter of the default if fast, five times as many if all."""
    if LEVEL == "fast":
        return fast if fast is not None else max(1, default // 4)
    if LEVEL == "all":
        return everything if everything is not None else 5 * default
    return default
