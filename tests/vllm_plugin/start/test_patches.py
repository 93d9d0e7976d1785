"""Patches of vLLM: all are applied, or none if this vLLM lacks anything that one needs."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from inspect import getattr_static
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from vllm import version

import constrained_k2.vllm_plugin as plugin
from constrained_k2.vllm_plugin.shared.flags import PACKAGE
from constrained_k2.vllm_plugin.start import apply, registration
from constrained_k2.vllm_plugin.start.apply import PatchFailed, PatchState, activate, owner_of
from constrained_k2.vllm_plugin.start.patch import TESTED_VERSIONS, Patch, Process
from constrained_k2.vllm_plugin.start.table import PATCHES
from constrained_k2.vllm_plugin.start.versions import TRY_VARIABLE, VERSIONS
from tests.vllm_plugin.patched import patch_vllm

ROWS = apply.rows()
ENTRY_PATCHES = {row.target for row in ROWS if row.is_entry}
NAMED_BY_FLAGS = ["GrammarProposer", "KimiK2LogitsProcessor", "KimiK2ToolParser"]
GONE = object()
OURS = ["vllm", "serve", "kimi", "--tool-call-parser", "kimi_k2_constrained"]

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
    for flag in NAMED_BY_FLAGS:
        with pytest.raises(PatchFailed, match="Tested with vLLM"):
            plugin.__getattr__(flag)
    for process in get_args(Process):
        with pytest.raises(PatchFailed, match="Tested with vLLM"):
            activate(process)
    monkeypatch.setattr(sys, "argv", OURS)
    with pytest.raises(PatchFailed, match="Tested with vLLM"):
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
        with pytest.raises(PatchFailed, match="Tested with vLLM"):
            activate(process)
        with pytest.raises(PatchFailed, match="Tested with vLLM"):
            apply.require()
        apply.state.failure = None
    assert changed(before) == set()


@pytest.mark.parametrize("row", THREE_ENTRY_PATCHES, ids=lambda row: row.target)
def test_an_entry_patch_whose_module_is_imported_late_is_checked_then(
    row: Patch, without: Callable[[Patch], None]
) -> None:
    without(row)
    before = in_vllm()
    with pytest.raises(PatchFailed, match="Tested with vLLM"):
        apply.apply_entry_patches(row.target.partition(":")[0])
    assert changed(before) == set()


def test_after_a_failure_no_entry_patch_is_applied() -> None:
    apply.state.failure = PatchFailed("something is missing")
    before = in_vllm()
    for target in ENTRY_PATCHES:
        registration._on_import(target.partition(":")[0])
    assert changed(before) == set()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("vllm.nowhere:name", "no module vllm.nowhere"),
        ("vllm.version:nothing", "no 'nothing' in vllm.version"),
        ("vllm.parser:ParserManager.get_parser(nothing)", "no parameter 'nothing' in ParserManager.get_parser"),
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
    from constrained_k2.vllm_plugin.api_server import patched_answers

    registration.register()
    monkeypatch.delattr(patched_answers, "get_parser")
    before = in_vllm()
    with pytest.raises(PatchFailed, match="ParserManager.get_parser cannot be applied"):
        activate("api_server")
    assert changed(before) == set()


def test_without_our_flags_only_the_entry_patches_are_there() -> None:
    before = in_vllm()
    registration.register()
    assert changed(before) == ENTRY_PATCHES
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


@pytest.mark.parametrize("registered", [True, False], ids=["registered", "imported by a flag"])
@pytest.mark.parametrize("process", get_args(Process))
def test_a_process_gets_its_rows_and_the_entry_patches(process: Process, registered: bool) -> None:
    before = in_vllm()
    if registered:
        registration.register()
    activate(process)
    assert changed(before) == ENTRY_PATCHES | {row.target for row in ROWS if process in row.processes}


@pytest.mark.parametrize("row", PATCHES, ids=lambda row: row.target)
def test_a_row_says_all(row: Patch) -> None:
    module, _, function = row.replacement.partition(":")
    assert callable(getattr(import_module(f"{PACKAGE}.{module}"), function))
    assert row.why and row.upstream and row.remove_when
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
