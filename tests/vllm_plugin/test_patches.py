"""Patches of vLLM: all are applied, or none if this vLLM lacks anything that one needs."""

import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from inspect import Parameter, Signature, getattr_static, signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from vllm import version

import constrained_k2.vllm_plugin as plugin
from constrained_k2.vllm_plugin import flags, registration
from constrained_k2.vllm_plugin.patches import TESTED_VERSIONS, Patch, Process, apply
from constrained_k2.vllm_plugin.patches.apply import PatchFailed, State, activate, owner_of
from constrained_k2.vllm_plugin.patches.table import PATCHES
from tests.vllm_plugin.patched import patch_vllm

ROWS = apply.rows()
DOORS = {row.target for row in ROWS if row.door}
READS = [(row, read) for row in ROWS for read in row.reads]
NAMED_BY_FLAGS = ["GrammarProposer", "KimiK2LogitsProcessor", "KimiK2ToolParser"]
GONE = object()

for row in ROWS:
    import_module(row.target.partition(":")[0])


@pytest.fixture(autouse=True)
def unpatched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process in which no plugin has been loaded yet, without flags of ours; afterwards all is as before."""
    for target, original in apply.state.applied.items():
        monkeypatch.setattr(*owner_of(target), original)
    monkeypatch.setattr(apply, "state", State())
    monkeypatch.setattr(sys, "argv", ["vllm", "serve", "llama"])
    apply._instance_attributes.cache_clear()
    yield
    apply._instance_attributes.cache_clear()


def in_vllm() -> dict[str, Any]:
    """Return the present attribute at each target."""
    return {row.target: getattr_static(*owner_of(row.target), GONE) for row in ROWS}


def changed(before: dict[str, Any]) -> set[str]:
    return {target for target, found in in_vllm().items() if found is not before[target]}


def without(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Take ``module:name.name`` out of vLLM, or rename the parameter of ``module:name(parameter)``."""
    path, _, parameter = path.removesuffix(")").partition("(")
    owner, name = owner_of(path)
    if parameter:
        monkeypatch.setattr(owner, name, renamed(getattr(owner, name), parameter))
    elif isinstance(owner, type) and not path.endswith("__"):
        module, _, names = path.partition(":")
        monkeypatch.setattr(import_module(module), names.split(".")[0], lacking(owner, name))
    else:
        monkeypatch.delattr(owner, name)


def renamed(function: Any, parameter: str) -> Any:
    taken = signature(function).parameters
    assert parameter in taken

    def other(*_: Any, **__: Any) -> None:
        raise AssertionError("called")

    names = [name if name != parameter else f"{name}_" for name in taken]
    other.__signature__ = Signature([Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names])  # type: ignore[attr-defined]
    return other


def lacking(kind: type, name: str) -> type:
    """The class without an attribute, of itself or of its instances."""
    kept = {
        each: getattr_static(kind, each)
        for each in dir(kind)
        if each != name and (not each.startswith("__") or each in {"__init__", "__dataclass_fields__"})
    }
    only = type(kind.__name__, (), dict(kept))
    for each, value in kept.items():
        if name in apply._instance_attributes(type("One", (), {each: value})):
            delattr(only, each)  # the method that sets it
    return only


def assert_refused(row: Patch, read: str | None, before: dict[str, Any]) -> None:
    """The failure names a row that needs what is gone, and what was tested; vLLM is as before."""
    failure = apply.state.failure
    assert failure is not None
    home = str(read).rpartition(".")[0]  # a method that sets what is gone is gone with it
    culprits = [each.target for each in ROWS if each is row or read in each.reads or each.target.startswith(home)]
    assert any(target in str(failure) for target in culprits), failure
    assert version.__version__ in str(failure) and all(each in str(failure) for each in TESTED_VERSIONS)
    assert changed(before) == set()
    for name in NAMED_BY_FLAGS:
        with pytest.raises(PatchFailed, match="Tested with vLLM"):
            plugin.__getattr__(name)
    for process in get_args(Process):
        with pytest.raises(PatchFailed, match="Tested with vLLM"):
            activate(process)


@pytest.mark.parametrize(
    "row", [row for row in ROWS if not row.target.endswith("__getstate__")], ids=lambda row: row.target
)
def test_a_vllm_without_a_target(row: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, row.target)
    before = in_vllm()
    registration.register()
    assert_refused(row, row.target, before)
    monkeypatch.setattr(sys, "argv", ["vllm", "serve", "kimi", "--tool-call-parser", "kimi_k2_constrained"])
    with pytest.raises(PatchFailed, match="Tested with vLLM"):
        registration.register()


@pytest.mark.parametrize(("row", "read"), READS, ids=[f"{row.target} {read}" for row, read in READS])
def test_a_vllm_without_something_that_is_read(row: Patch, read: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, read if ":" in read else f"{row.target}({read})")
    before = in_vllm()
    registration.register()
    assert_refused(row, read, before)
    monkeypatch.setattr(sys, "argv", ["vllm", "serve", "kimi", "--tool-call-parser=kimi_k2_constrained"])
    with pytest.raises(PatchFailed, match="Tested with vLLM"):
        registration.register()


@pytest.mark.parametrize(
    "row", [row for row in ROWS if not row.target.endswith("__getstate__")], ids=lambda row: row.target
)
def test_what_register_has_not_seen_is_checked_before_anything_is_applied(
    row: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a process that had not loaded the target's module when the plugin was loaded."""
    registration.register()
    without(monkeypatch, row.target)
    apply._instance_attributes.cache_clear()
    before = in_vllm()
    for process in row.processes:
        with pytest.raises(PatchFailed, match="Tested with vLLM"):
            activate(process)
    assert changed(before) == set()


@pytest.mark.parametrize("number", ["0.31.9", "0.34.0", "1.0", "dev"])
def test_a_version_that_was_not_tested(
    number: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(version, "__version__", number)
    before = in_vllm()
    registration.register()
    assert changed(before) == set()
    assert f"vLLM {number} was not tested" in caplog.text
    for name in NAMED_BY_FLAGS:
        with pytest.raises(PatchFailed, match=f"vLLM {number} was not tested.*{', '.join(TESTED_VERSIONS)}"):
            plugin.__getattr__(name)


def test_our_own_mistakes_do_not_stop_other_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply, "require_loaded_rows", lambda: 1 / 0)
    before = in_vllm()
    registration.register()
    assert changed(before) == set()
    assert "ZeroDivisionError" in str(apply.state.failure)


def test_a_replacement_that_cannot_be_made_leaves_all_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    from constrained_k2.vllm_plugin.patches import answers

    registration.register()
    monkeypatch.delattr(answers, "get_parser")
    before = in_vllm()
    with pytest.raises(PatchFailed, match="ParserManager.get_parser cannot be applied"):
        activate("api_server")
    assert changed(before) == set()


def test_without_our_flags_only_the_doors_are_there() -> None:
    before = in_vllm()
    registration.register()
    assert changed(before) == DOORS
    once = in_vllm()
    registration.register()
    assert changed(once) == set()


def test_with_our_flags_every_row_is_applied_once() -> None:
    before = in_vllm()
    patch_vllm()
    assert changed(before) == {row.target for row in ROWS}
    once = in_vllm()
    patch_vllm()
    assert changed(once) == set()


@pytest.mark.parametrize("process", get_args(Process))
def test_a_process_gets_its_rows_and_the_doors(process: Process) -> None:
    before = in_vllm()
    registration.register()
    activate(process)
    assert changed(before) == DOORS | {row.target for row in ROWS if process in row.processes}


@pytest.mark.parametrize("row", PATCHES, ids=lambda row: row.target)
def test_a_row_says_all(row: Patch) -> None:
    module, _, function = row.replacement.partition(":")
    assert callable(getattr(import_module(f"{apply.__package__}.{module}"), function))
    assert row.why and row.upstream and row.remove_when
    assert row.versions and set(row.versions) <= set(TESTED_VERSIONS)
    assert row.processes and set(row.processes) <= set(get_args(Process))


def test_the_doors_pass_servers_without_our_flags_through(monkeypatch: pytest.MonkeyPatch) -> None:
    from constrained_k2.vllm_plugin.patches import start

    monkeypatch.setattr(start, "activate", lambda _: pytest.fail("activated"))
    config = SimpleNamespace(additional_config={"other": 1}, model_config=SimpleNamespace(logits_processors=["x:Y"]))
    vllm: Any = lambda *args, **kwargs: (args, kwargs)  # noqa: E731
    args = SimpleNamespace(tool_call_parser="hermes")
    assert start.from_cli_args(vllm)("cls", args, 1, a=2) == (("cls", args, 1), {"a": 2})
    assert start.structured_output_manager(vllm)(config) == ((config,), {})
    worker = SimpleNamespace(vllm_config=config)
    assert start.init_device(vllm)(worker) == ((worker,), {})
    seen: list[Any] = []
    start.input_processor_init(lambda *args, **kwargs: seen.append((args, kwargs)))("self", config, 1, a=2)
    assert seen == [(("self", config, 1), {"a": 2})]


@pytest.mark.parametrize(
    ("arguments", "ours"),
    [
        (["--tool-call-parser", "kimi_k2_constrained"], True),
        (["--tool_call_parser=kimi_k2_constrained"], True),
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


@pytest.mark.parametrize(
    ("fields", "ours"),
    [
        ({"additional_config": {"constrained_k2": {}}}, True),
        ({"logits_processors": ["constrained_k2.vllm_plugin:KimiK2LogitsProcessor"]}, True),
        ({"speculative_config": {"model": "constrained_k2.vllm_plugin.GrammarProposer"}}, True),
        ({"additional_config": {"other": {}}, "speculative_config": {"method": "ngram"}}, False),
        ({}, False),
    ],
)
def test_flags_are_found_in_a_script(fields: dict[str, Any], ours: bool) -> None:
    class EngineArgs(SimpleNamespace):
        """vLLM's loads plugins while it is being made."""

        def __post_init__(self) -> bool:
            return flags.process_has_our_flags()

    assert EngineArgs(**fields).__post_init__() is ours


@pytest.mark.slow
def test_loading_the_plugin_imports_nothing_of_vllms() -> None:
    """And a door's module that is imported later gets its door."""
    code = """if True:
        import sys
        import vllm.engine.arg_utils
        before = set(sys.modules)
        from constrained_k2.vllm_plugin import register
        register()
        new = set(sys.modules) - before
        assert "constrained_k2.vllm_plugin.registration" in new, new
        assert all(name.startswith("constrained_k2") for name in new), new
        assert all("vllm_plugin" in name for name in new - {"constrained_k2", "constrained_k2.errors"}), new
        from vllm.tool_parsers import ToolParserManager
        from vllm.v1.engine.input_processor import InputProcessor
        assert "kimi_k2_constrained" in ToolParserManager.list_registered()
        assert InputProcessor.__init__.__wrapped__
    """
    subprocess.run([sys.executable, "-c", code], check=True)
