"""The plugin's entry point: how it sees our flags, and vLLM's modules as they are imported."""

import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module, reload
from importlib.util import find_spec
from pathlib import Path

import pytest

from constrained_k2.vllm_plugin.shared import flags
from constrained_k2.vllm_plugin.start import apply, registration
from constrained_k2.vllm_plugin.start.apply import PatchState


@pytest.fixture(autouse=True)
def without_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in which nothing has failed, without flags of ours."""
    monkeypatch.setattr(apply, "state", PatchState())
    monkeypatch.setattr(sys, "argv", ["vllm", "serve", "llama"])


@pytest.fixture
def imported_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module that has not been imported yet; finders and sys.modules are restored."""
    (tmp_path / "imported_later.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield "imported_later"
    sys.modules.pop("imported_later", None)


def test_a_module_whose_spec_was_asked_for_before_still_gets_its_entry_patch(
    imported_later: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(registration, "_on_import", seen.append)
    registration._watch({imported_later})
    assert find_spec(imported_later)
    assert seen == []
    reload(import_module(imported_later))
    assert seen == [imported_later]


def test_our_own_mistakes_do_not_stop_an_import_of_vllms(imported_later: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "_on_import", lambda _: 1 / 0)
    registration._watch({imported_later})
    assert import_module(imported_later)
    assert "ZeroDivisionError" in str(apply.state.failure)


@pytest.mark.parametrize(
    ("arguments", "ours"),
    [
        (["--tool-call-parser", "kimi_k2_constrained"], True),
        (["--tool_call_parser=kimi_k2_constrained"], True),
        (["--tool-call-parser", "kimi_constrained"], True),
        (["--logits-processors", "constrained_k2.vllm_plugin:KimiK2LogitsProcessor"], True),
        (["--additional-config", '{"constrained_k2": {}}'], True),
        (["--additional-config.constrained_k2.route", "structured_output"], True),
        (["--speculative-config", '{"model": "constrained_k2.vllm_plugin.GrammarProposer"}'], True),
        (["--config", "FILE"], True),
        (["--config=FILE"], True),
        (["--tool-call-parser", "kimi_k2"], False),
        (["--model", "/models/constrained_k2/llama"], False),
    ],
)
def test_flags_are_found_on_the_command_line(
    arguments: list[str], ours: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("model: kimi\ntool-call-parser: kimi_k2_constrained\n")
    monkeypatch.setattr(sys, "argv", ["vllm", "serve", *(each.replace("FILE", str(file)) for each in arguments)])
    assert flags.process_has_our_flags() is ours


@pytest.mark.slow
@pytest.mark.parametrize(
    ("process", "foreign"),
    [
        ("worker", ("api_server", "engine_core")),
        ("engine_core", ("api_server", "worker")),
        ("api_server", ("engine_core", "worker")),
    ],
)
def test_a_process_loads_no_replacements_of_others(process: str, foreign: tuple[str, ...]) -> None:
    code = f"""if True:
        import sys
        from constrained_k2.vllm_plugin import register
        from constrained_k2.vllm_plugin.start.apply import activate
        register()
        activate({process!r})
        ours = [name.split(".") for name in sys.modules if name.startswith("constrained_k2.vllm_plugin.")]
        assert not [name for name in ours if name[2] in {foreign!r}], ours
    """
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_loading_the_plugin_imports_nothing_of_vllms() -> None:
    """And a module that is imported later gets its entry patch."""
    code = """if True:
        import sys
        import vllm.engine.arg_utils
        before = set(sys.modules)
        from constrained_k2.vllm_plugin import register
        register()
        new = set(sys.modules) - before
        assert "constrained_k2.vllm_plugin.start.registration" in new, new
        assert all(name.startswith("constrained_k2") for name in new), new
        assert all("vllm_plugin" in name for name in new - {"constrained_k2", "constrained_k2.errors"}), new
        from vllm.tool_parsers import ToolParserManager
        from vllm.v1.engine.input_processor import InputProcessor
        assert {"kimi_constrained", "kimi_k2_constrained"} <= set(ToolParserManager.list_registered())
        assert InputProcessor.__init__.__wrapped__
    """
    subprocess.run([sys.executable, "-c", code], check=True)
