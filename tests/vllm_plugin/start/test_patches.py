"""The plugin's entry point, and its patches of vLLM: all are applied, or none if this vLLM lacks anything that one needs."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib import import_module, reload
from importlib.util import find_spec
from inspect import getattr_static
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from vllm import version

import constrained_k2.vllm_plugin as plugin
from constrained_k2.vllm_plugin.shared import flags
from constrained_k2.vllm_plugin.shared.flags import PACKAGE
from constrained_k2.vllm_plugin.start import apply, registration
from constrained_k2.vllm_plugin.start.apply import PatchFailed, PatchState, activate, owner_of
from constrained_k2.vllm_plugin.start.patch import TESTED_VERSIONS, Patch, Process
from constrained_k2.vllm_plugin.start.table import PATCHES
from constrained_k2.vllm_plugin.start.versions import TRY_VARIABLE, VERSIONS

ROWS = apply.rows()
ENTRY_PATCHES = {row.target for row in ROWS if row.is_entry}
NAMED_BY_FLAGS = ["GrammarProposer", "KimiK2LogitsProcessor", "KimiK2ToolParser"]
GONE = object()

for row in ROWS:
    import_module(row.target.partition(":")[0])

LACKS: dict[str, Callable[[Patch], Patch]] = {  # what of a row is not there -> the row
    "target": lambda row: replace(row, target=f"{row.target}_gone"),
    "parameter of the target": lambda row: replace(row, reads=(*row.reads, "gone")),
    "parameter": lambda row: replace(row, reads=("vllm.parser:ParserManager.get_parser(gone)", *row.reads)),
    "attribute": lambda row: replace(row, reads=(*row.reads, "vllm.config:VllmConfig.gone")),
    "name of a module": lambda row: replace(row, reads=(*row.reads, "vllm.version:gone")),
}


def three(rows: list[Patch]) -> list[Patch]:
    """The first row, the last one and one between, of those that read parameters of their target."""
    rows = [row for row in rows if any(":" not in read for read in row.reads)]
    return rows[:: max(1, (len(rows) - 1) // 2)][:3]


THREE_ENTRY_PATCHES = three([row for row in ROWS if row.is_entry])
SIX = pytest.mark.parametrize(
    "row", [*THREE_ENTRY_PATCHES, *three([row for row in ROWS if not row.is_entry])], ids=lambda row: row.target
)


@pytest.fixture(params=LACKS)
def without(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Patch], None]:
    """Have a row need something that vLLM lacks."""

    def lacking(row: Patch) -> None:
        needing = LACKS[request.param](row)
        monkeypatch.setattr(apply, "PATCHES", tuple(needing if each is row else each for each in PATCHES))

    return lacking


@pytest.fixture(autouse=True)
def unpatched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process in which no plugin has been loaded yet, without flags of ours; afterwards all is as before."""
    for target, original in apply.state.applied.items():
        monkeypatch.setattr(*owner_of(target), original)
    monkeypatch.setattr(apply, "state", PatchState())
    monkeypatch.setattr(sys, "argv", ["vllm", "serve", "llama"])
    yield
    for target, original in reversed(apply.state.applied.items()):
        setattr(*owner_of(target), original)


def in_vllm() -> dict[str, Any]:
    """Return the present attribute at each target."""
    return {row.target: getattr_static(*owner_of(row.target), GONE) for row in ROWS}


def refused() -> AbstractContextManager[Any]:
    return pytest.raises(PatchFailed, match="Tested with vLLM")


def changed(before: dict[str, Any]) -> set[str]:
    return {target for target, found in in_vllm().items() if found is not before[target]}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.target)
def test_every_name_of_a_row_is_in_this_vllm(row: Patch) -> None:
    names = [row.target, *(read if ":" in read else f"{row.target}({read})" for read in row.reads)]
    assert [problem for problem in map(apply.missing, names) if problem] == []


@SIX
def test_a_vllm_without_a_name_is_refused(
    row: Patch, without: Callable[[Patch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure names the row, what is gone, and what was tested; vLLM is as before."""
    without(row)
    before = in_vllm()
    registration.register()
    said = str(apply.state.failure)
    assert f"the patch of {row.target}" in said and "gone'" in said
    assert version.__version__ in said and all(each in said for each in TESTED_VERSIONS)
    assert changed(before) == set()
    calls = [(plugin.__getattr__, flag) for flag in NAMED_BY_FLAGS]
    for call, name in (*calls, *((activate, process) for process in get_args(Process))):
        with refused():
            call(name)
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--tool-call-parser", "kimi_k2_constrained"])
    with refused():
        registration.register()


@SIX
def test_what_register_has_not_seen_is_checked_before_anything_is_applied(
    row: Patch, without: Callable[[Patch], None]
) -> None:
    """As in a process that had not loaded the target's module when the plugin was loaded."""
    registration.register()
    without(row)
    before = in_vllm()
    # The front end checks the engine core's rows too: it starts before any weight is loaded.
    for process in {*row.processes, "api_server"} if "engine_core" in row.processes else row.processes:
        with refused():
            activate(process)
        with refused():
            apply.require()
        apply.state.failure = None
    assert changed(before) == set()


@pytest.mark.parametrize("row", THREE_ENTRY_PATCHES, ids=lambda row: row.target)
def test_an_entry_patch_whose_module_is_imported_late_is_checked_then(
    row: Patch, without: Callable[[Patch], None]
) -> None:
    """After the failure no other entry patch is applied either."""
    without(row)
    before = in_vllm()
    with refused():
        apply.apply_entry_patches(row.target.partition(":")[0])
    apply.state.failure = PatchFailed("something is missing")
    for target in ENTRY_PATCHES:
        registration._on_import(target.partition(":")[0])
    assert changed(before) == set()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("vllm.nowhere:name", "no module vllm.nowhere"),
        ("vllm.version:__version__(nothing)", "__version__ is not a function"),
        ("vllm.version:__version__", None),
    ],
)
def test_what_is_missing_is_named(path: str, message: str | None) -> None:
    found = apply.missing(path)
    assert found is None if message is None else message in str(found)


@pytest.mark.parametrize("registered", [True, False], ids=["registered", "VLLM_PLUGINS is empty"])
@pytest.mark.parametrize("number", ["0.31.9", "0.99.0", "1.0", "dev"])
def test_a_version_that_was_not_tested(
    number: str, registered: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Operators' flags name our classes whether the plugin was registered or not."""
    monkeypatch.setattr(version, "__version__", number)
    before = in_vllm()
    if registered:
        registration.register()
        assert f"vLLM {number} was not tested" in caplog.text
    assert changed(before) == set()
    for name in NAMED_BY_FLAGS:
        with pytest.raises(PatchFailed, match=f"vLLM {number} was not tested.*{', '.join(TESTED_VERSIONS)}"):
            plugin.__getattr__(name)


def test_an_untested_version_is_tried_with_the_newest_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "__version__", "0.99.0")
    monkeypatch.setenv(TRY_VARIABLE, "1")
    apply.require_version()
    assert apply.rows() == [row for row in PATCHES if VERSIONS[-1].minor in row.versions]


def test_the_tool_parser_needs_the_patches_of_its_process() -> None:
    registration.register()
    with pytest.raises(PatchFailed, match="patches of the api_server process are not applied"):
        plugin.__getattr__("KimiK2ToolParser")
    activate("api_server")
    assert plugin.__getattr__("KimiK2ToolParser").name == "kimi_constrained"


def test_our_own_mistakes_do_not_stop_other_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply, "require_loaded_rows", lambda: 1 / 0)
    before = in_vllm()
    registration.register()
    assert changed(before) == set()
    assert "ZeroDivisionError" in str(apply.state.failure)


def test_a_replacement_that_cannot_be_made_leaves_all_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    from constrained_k2.vllm_plugin.api_server import patched

    registration.register()
    monkeypatch.delattr(patched, "get_parser")
    before = in_vllm()
    with pytest.raises(PatchFailed, match="ParserManager.get_parser cannot be applied"):
        activate("api_server")
    assert changed(before) == set()


@pytest.mark.parametrize("registered", [True, False], ids=["registered", "imported by a flag"])
@pytest.mark.parametrize("processes", [*((each,) for each in get_args(Process)), get_args(Process)], ids="+".join)
def test_a_process_gets_the_entry_patches_and_its_rows_once(processes: tuple[Process, ...], registered: bool) -> None:
    before = in_vllm()
    if registered:
        registration.register()
        assert changed(before) == ENTRY_PATCHES  # all that a server without our flags has
    expected = ENTRY_PATCHES | {row.target for row in ROWS if set(processes) & set(row.processes)}
    for _ in range(2):
        for process in processes:
            activate(process)
        assert changed(before) == expected
    once = in_vllm()
    registration.register()
    assert changed(once) == set()


@pytest.mark.parametrize("row", PATCHES, ids=lambda row: row.target)
def test_a_row_says_all(row: Patch) -> None:
    module, _, function = row.replacement.partition(":")
    assert callable(getattr(import_module(f"{PACKAGE}.{module}"), function))
    assert row.why and row.remove_when
    assert row.versions and set(row.versions) <= set(TESTED_VERSIONS)
    assert row.processes and set(row.processes) <= set(get_args(Process))


def test_what_is_replaced_in_one_version_is_replaced_in_all() -> None:
    """A row that names its versions does not apply to the next one: that needs the row, another one, or a line here."""
    not_needed: set[tuple[str, str]] = set()  # remove_when, and a version that offers it
    for row in PATCHES:
        covered = {version for each in PATCHES if each.remove_when == row.remove_when for version in each.versions}
        for number in set(TESTED_VERSIONS) - covered:
            assert (row.remove_when, number) in not_needed, f"no row for {row.target} in vLLM {number}"


def test_the_entry_patches_pass_servers_without_our_flags_through(monkeypatch: pytest.MonkeyPatch) -> None:
    from constrained_k2.vllm_plugin.start import entry

    monkeypatch.setattr(entry, "activate", lambda _: pytest.fail("activated"))
    config = SimpleNamespace(additional_config={"other": 1}, model_config=SimpleNamespace(logits_processors=["x:Y"]))
    vllm: Any = lambda *args, **kwargs: (args, kwargs)  # noqa: E731
    args = SimpleNamespace(tool_call_parser="hermes")
    assert entry.from_cli_args(vllm)("cls", args, 1, a=2) == (("cls", args, 1), {"a": 2})
    assert entry.structured_output_manager(vllm)(config) == ((config,), {})
    worker = SimpleNamespace(vllm_config=config)
    assert entry.init_device(vllm)(worker) == ((worker,), {})
    seen: list[Any] = []
    entry.input_processor_init(lambda *args, **kwargs: seen.append((args, kwargs)))("self", config, 1, a=2)
    assert seen == [(("self", config, 1), {"a": 2})]


# The entry point: how it sees our flags, and vLLM's modules as they are imported


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
