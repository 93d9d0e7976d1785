"""The ``vllm.general_plugins`` entry point: vLLM calls it at least once in every process."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from constrained_k2.vllm_plugin.shared.flags import PACKAGE, TOOL_PARSER_NAMES, process_has_our_flags
from constrained_k2.vllm_plugin.shared.log import logger
from constrained_k2.vllm_plugin.start import apply
from constrained_k2.vllm_plugin.start.apply import PatchFailed

_TOOL_PARSERS = "vllm.tool_parsers"


def register() -> None:
    """Make our tool parser known to vLLM, and watch for our flags (:mod:`constrained_k2.vllm_plugin.start.patch`).

    Imports nothing of vLLM. Where this package cannot run, vLLM is left as it was.

    Raises:
        PatchFailed: This package cannot run here, and the process was started with our flags. Nothing else is raised:
            vLLM does not start, whatever it serves, if a plugin's function raises.
    """
    try:
        _watch({_TOOL_PARSERS})  # first, so that a server that asks for our tool parser stops with the reason
        if apply.state.failure is None:
            apply.require_version()
            apply.require_loaded_rows()
            _watch({row.target.partition(":")[0] for row in apply.rows() if row.is_entry})
    except Exception as error:  # noqa: BLE001 - see above
        _fail(error)
    if apply.state.failure is not None and process_has_our_flags():
        raise apply.state.failure


def _watch(modules: set[str]) -> None:
    """Call :func:`_on_import` for each module: now if it is imported already, else after its import."""
    later = modules - sys.modules.keys()
    for module in modules - later:
        _on_import(module)
    _watcher.modules |= later
    if later and _watcher not in sys.meta_path:
        sys.meta_path.insert(0, _watcher)


def _on_import(module: str) -> None:
    if module == _TOOL_PARSERS:
        for name in TOOL_PARSER_NAMES:
            sys.modules[module].ToolParserManager.register_lazy_module(name, PACKAGE, "KimiK2ToolParser")
    elif apply.state.failure is None:
        apply.apply_entry_patches(module)


def _fail(error: Exception) -> None:
    failure = error if isinstance(error, PatchFailed) else PatchFailed(f"registering failed: {error!r}")
    apply.state.failure = failure
    logger.warning("constrained_k2 is not available on this server: %s", failure)


class _ImportWatcher(MetaPathFinder):
    def __init__(self) -> None:
        self.modules: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Let the other finders find a module, and see it once it has been executed."""
        if fullname not in self.modules:
            return None
        specs = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, specs), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                self.modules.discard(fullname)  # not before: a spec may be asked for without an import
                try:
                    _on_import(fullname)
                except Exception as error:  # noqa: BLE001 - it would be vLLM's own import that fails
                    _fail(error)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_watcher = _ImportWatcher()
