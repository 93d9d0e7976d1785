"""Checks the table of patches against the installed vLLM; applies all patches of a process or none."""

import dis
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache, reduce
from importlib import import_module
from inspect import get_annotations, getattr_static, signature, unwrap
from types import FunctionType
from typing import Any, get_args

from constrained_k2.errors import ConstrainedK2Error
from constrained_k2.vllm_plugin.shared.flags import PACKAGE
from constrained_k2.vllm_plugin.start.patch import TESTED_VERSIONS, Patch, Process
from constrained_k2.vllm_plugin.start.table import PATCHES
from constrained_k2.vllm_plugin.start.versions import TRY_VARIABLE, version_of_rows


class PatchFailed(ConstrainedK2Error, RuntimeError):
    """This package cannot run inside the vLLM that is installed. Nothing of vLLM is changed then."""


@dataclass(slots=True)
class PatchState:
    """The changes made to vLLM in this process."""

    applied: dict[str, Any] = field(default_factory=dict)  # the replaced targets, each with vLLM's object
    processes: set[Process] = field(default_factory=set)  # several where the engine runs in the front end's
    failure: PatchFailed | None = None  # why this package cannot run here


state = PatchState()


def vllm_version() -> str:
    """The version of the vLLM that is installed, such as ``0.32.0``."""
    from vllm import version

    return str(version.__version__)


def rows(*processes: Process) -> list[Patch]:
    """The table's rows for the version that is installed, of these processes or of all."""
    version = version_of_rows(vllm_version())
    here = set(processes or get_args(Process))
    return [row for row in PATCHES if version and version.minor in row.versions and here & set(row.processes)]


def require_version() -> None:
    """Refuse a version of vLLM that was not tested, unless the operator tries it."""
    version = vllm_version()
    if version_of_rows(version) is None:
        state.failure = _failed(f"vLLM {version} was not tested")
        raise state.failure


def require_loaded_rows() -> None:
    """Check what this process has loaded of all rows. The rest is checked when it is needed."""
    for row in rows():
        _require(row, loaded_only=True)


def activate(process: Process) -> None:
    """Apply the rows of a process that runs with our flags, all or none, unless they are applied already."""
    require()
    if process in state.processes:
        return
    try:
        # The front end starts before any weight is loaded, and has the engine core's modules anyway, not the worker's.
        for row in rows("api_server", "engine_core") if process == "api_server" else rows(process):
            _require(row)
        # Entry patches of the other processes too: the engine may run in this one, or in one that is forked from it.
        _replace([row for row in rows() if process in row.processes or row.is_entry])
    except PatchFailed as error:
        state.failure = error
        raise
    state.processes.add(process)


def apply_entry_patches(module: str) -> None:
    """Apply the entry patches in a module."""
    entry_patches = [row for row in rows() if row.is_entry and row.target.startswith(f"{module}:")]
    for row in entry_patches:
        _require(row)
    _replace(entry_patches)


def require() -> None:
    """Raise if this package cannot run here. Everything that our flags name calls this first."""
    if state.failure is not None:
        raise state.failure
    if not state.applied:
        require_version()


def require_process(process: Process) -> None:
    """Refuse to load what needs the rows of a process, where they are not applied."""
    if process not in state.processes:
        raise PatchFailed(
            f"the patches of the {process} process are not applied",
            "constrained_k2",
            'Start the server by `vllm serve`, or give its engine additional_config {"constrained_k2": {"route": '
            '"structured_output"}}, and do not leave constrained_k2 out of VLLM_PLUGINS',
        )


def missing(path: str) -> str | None:
    """Name what is missing of ``module:name.name`` or ``module:name(parameter)``; None if all is there."""
    path, _, parameter = path.removesuffix(")").partition("(")
    module, _, names = path.partition(":")
    try:
        found: Any = import_module(module)
    except ImportError as error:
        return f"no module {module} ({error})"
    for name in names.split("."):
        if hasattr(found, name):
            found = getattr(found, name)
        elif isinstance(found, type) and name in _instance_attributes(found):
            return None
        else:
            return f"no {name!r} in {getattr(found, '__qualname__', module)} ({module})"
    if parameter and not callable(found):
        return f"{names} is not a function ({module})"
    if parameter and parameter not in signature(found).parameters:
        return f"no parameter {parameter!r} in {names} ({module})"
    return None


def owner_of(target: str) -> tuple[Any, str]:
    """The module or class that holds ``module:name.name``, and the last name."""
    module, _, names = target.partition(":")
    *outer, name = names.split(".")
    return reduce(getattr, outer, import_module(module)), name


def _require(row: Patch, *, loaded_only: bool = False) -> None:
    for path in (row.target, *(read if ":" in read else f"{row.target}({read})" for read in row.reads)):
        is_needed = not loaded_only or path.partition(":")[0] in sys.modules
        if is_needed and (problem := missing(path)):
            raise _failed(f"the patch of {row.target} cannot be applied: {problem} in vLLM {vllm_version()}")


def _replace(patches: Iterable[Patch]) -> None:
    """Make all replacements, then install them: making one may fail, installing it cannot."""
    made: list[tuple[Patch, Any, str, Any]] = []
    for row in patches:
        if row.target in state.applied:
            continue
        module, _, function = row.replacement.partition(":")
        try:
            owner, name = owner_of(row.target)
            factory = getattr(import_module(f"{PACKAGE}.{module}"), function)
            found = getattr_static(owner, name)
            is_bound = isinstance(found, classmethod | staticmethod)
            replacement = type(found)(factory(found.__func__)) if is_bound else factory(getattr(owner, name))
            made.append((row, owner, name, replacement))
        except Exception as error:
            raise _failed(f"the patch of {row.target} cannot be applied: {error!r} in vLLM {vllm_version()}") from error
    for row, owner, name, replacement in made:
        state.applied[row.target] = getattr_static(owner, name)
        setattr(owner, name, replacement)


def _failed(problem: str) -> PatchFailed:
    remedy = f"Tested with vLLM {', '.join(TESTED_VERSIONS)}: install one of these, or start without our flags"
    if version_of_rows(vllm_version()) is None:
        remedy += f". {TRY_VARIABLE}=1 tries this version"
    return PatchFailed(problem, "constrained_k2", remedy)


@cache
def _instance_attributes(kind: type) -> frozenset[str]:
    """The attributes that instances have but their class does not: annotated, or set on ``self`` by a method."""
    found: set[str] = set()
    for base in kind.__mro__[:-1]:
        found |= get_annotations(base).keys()
        found |= getattr(base, "model_fields", {}).keys() | set(getattr(base, "__struct_fields__", ()))
        for value in vars(base).values():
            function = unwrap(value) if callable(value) else None
            if isinstance(function, FunctionType):
                found |= {step.argval for step in dis.get_instructions(function) if step.opname == "STORE_ATTR"}
    return frozenset(found)
