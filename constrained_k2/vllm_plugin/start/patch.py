"""Defines a patch: a row of the table of vLLM objects that this package replaces.

* :mod:`.table`: one row a replacement: what, by what, what it reads of vLLM, why, and when it can go.
* :mod:`.versions`: what was tested on which version of vLLM.
* :mod:`.apply`: checks rows, and applies all of a process or none.
* :mod:`.entry`: the four entry patches, the only replacements in a server without our flags. Each calls vLLM's function
  with the same arguments; if it sees one of our flags, it applies the rows of its process first.
* ``patched.py`` in the folder of a process: its replacements. A process imports only the files that its rows name.

A replacement is a function that takes vLLM's object and returns what replaces it. A new vLLM version is
supported by rows here and by a row of :data:`.versions.VERSIONS`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Literal

from constrained_k2.vllm_plugin.start.versions import VERSIONS

TESTED_VERSIONS = tuple(version.minor for version in VERSIONS)
"""The minor versions of vLLM that the package runs in."""

Process = Literal["api_server", "engine_core", "worker"]
"""vLLM's processes. ``api_server`` is whatever admits requests, a script that makes an ``LLM`` included."""


@dataclass(frozen=True, slots=True)
class Patch:
    """A replacement in vLLM.

    Attributes:
        target: What is replaced, as ``module:name.name``.
        replacement: ``folder.module:function`` below ``vllm_plugin``: the function takes vLLM's object and returns its
            replacement.
        processes: Those that the row is for.
        reads: What the replacement reads of vLLM: parameters of the target by name, anything else as
            ``module:Class.attribute`` or ``module:function(parameter)``.
        why: Why vLLM's own behaviour does not do.
        remove_when: When the row can be deleted.
        versions: The minor versions of vLLM that need it.
        is_entry: True for an entry patch: it is applied without our flags, to watch for them.
    """

    target: str
    replacement: str
    processes: tuple[Process, ...]
    reads: tuple[str, ...]
    why: str
    remove_when: str
    versions: tuple[str, ...] = TESTED_VERSIONS
    is_entry: bool = False


def reads(*groups: str) -> tuple[str, ...]:
    """Each group is parameters of the target, or ``module:Class`` followed by attributes of it."""
    found: list[str] = []
    for home, *names in map(str.split, groups):
        found += [f"{home}.{name}" for name in names] or [home] if ":" in home else [home, *names]
    return tuple(found)


def wrapper(replacement: Callable[..., Any]) -> Callable[[Any], Any]:
    """Make a replacement of a function that takes vLLM's function before that function's arguments."""

    def wrap(original: Any) -> Any:
        @wraps(original)
        def replaced(*args: Any, **kwargs: Any) -> Any:
            return replacement(original, *args, **kwargs)

        return replaced

    return wrap
