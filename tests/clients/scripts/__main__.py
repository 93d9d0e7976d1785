"""Run the scripts of one module against a server: ``python -m tests.clients.scripts MODULE URL [NAME ...]``.

Every public function of the module is a script: it takes the server's address without ``/v1`` and raises on a failure.
One JSON line a script goes to stdout: its name, and its problem or null.
"""

import asyncio
import importlib
import inspect
import json
import signal
import sys
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

_SECONDS = 90  # for one script


def scripts(module: ModuleType) -> dict[str, Callable[[str], Any]]:
    """The module's scripts by name."""
    return {
        name: found
        for name, found in vars(module).items()
        if inspect.isfunction(found) and found.__module__ == module.__name__ and not name.startswith("_")
    }


def problem(script: Callable[[str], Any], url: str, runner: asyncio.Runner) -> str | None:
    """Run a script; return its traceback if it raises or exceeds its time.

    One event loop serves all scripts: libraries keep asynchronous connections for the length of a process.
    """
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(_SECONDS)
    try:
        found = script(url)
        if inspect.iscoroutine(found):
            runner.run(found)
    except (Exception, KeyboardInterrupt):  # noqa: BLE001 - whatever a script raises is its result
        return traceback.format_exc(limit=-12)
    finally:
        signal.alarm(0)
    return None


def main() -> None:
    """Run the scripts in the order of the module."""
    name, url, *wanted = sys.argv[1:]
    with asyncio.Runner() as runner:
        for script_name, script in scripts(importlib.import_module(f"tests.clients.scripts.{name}")).items():
            if not wanted or script_name in wanted:
                print(json.dumps({"name": script_name, "problem": problem(script, url, runner)}), flush=True)


if __name__ == "__main__":
    main()
