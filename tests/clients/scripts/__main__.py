"""Run the scripts of one module against a server: ``python -m tests.clients.scripts MODULE URL [NAME ...]``.

Every public function of the module is a script, which raises on a failure, and every one of ``calls`` if the module imports
it, but those in its ``WITHOUT``. A script's parameter is ``url``, the server's address without ``/v1``, or a name in the module's
``EACH``: then it runs with every value that the function there makes of the address. One JSON line a script goes to stdout:
its name, and its problem or null.
"""

import asyncio
import importlib
import inspect
import json
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

_SECONDS = 90  # for one script


def scripts(module: ModuleType) -> dict[str, Callable[[Any], Any]]:
    """The module's scripts by name."""
    shared, without = getattr(module, "calls", None), getattr(module, "WITHOUT", ())
    return {
        name: found
        for each in filter(None, (shared, module))
        for name, found in vars(each).items()
        if inspect.isfunction(found) and found.__module__ == each.__name__ and not name.startswith("_")
        if each is module or name not in without
    }


def problem(script: Callable[[Any], Any], values: Iterable[Any], runner: asyncio.Runner) -> str | None:
    """Run a script with each of these values; return its traceback if it raises or exceeds its time.

    One event loop serves all scripts: libraries keep asynchronous connections for the length of a process.
    """
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(_SECONDS)
    try:
        for value in values:
            found = script(value)
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
    module = importlib.import_module(f"tests.clients.scripts.{name}")
    each: dict[str, Callable[[str], Iterable[Any]]] = {"url": lambda url: [url]} | getattr(module, "EACH", {})
    with asyncio.Runner() as runner:
        for script_name, script in scripts(module).items():
            if not wanted or script_name in wanted:
                (parameter,) = inspect.signature(script).parameters
                found = problem(script, each[parameter](url), runner)
                print(json.dumps({"name": script_name, "problem": found}), flush=True)


if __name__ == "__main__":
    main()
