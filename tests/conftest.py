"""Vocabularies and servers that many tests share, and how pytest-xdist divides the tests."""

import os
import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from constrained_k2 import Compiler, Vocabulary
from constrained_k2.engines.llguidance import grammar_text
from constrained_k2.testing import write_tokenizer
from tests.kit.budget import LEVEL, SEED
from tests.kit.data import data
from tests.kit.k3_turns import as_k3
from tests.kit.servers import group, server

__all__ = ["server"]

settings.register_profile("untimed", deadline=None)  # a busy machine does not make a test fail
settings.load_profile("untimed")

# vLLM binds every server to the same core by default, where two of them would share it.
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")

LONGEST = (
    "server topologies",
    "server ",
    "test_engine_runs",
    "test_processor_v2",
    "test_doctor_server",
    "test_hostile_server",
)


class ByGroup(LoadScopeScheduling):
    """Schedules whole groups. (xdist 3.8's own ``loadgroup`` has no effect under pytest 9.2: it sets ``_nodeid``.)"""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Have hypothesis start from the seed of this run."""
    if config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = SEED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the seed if a test failed."""
    if terminalreporter.stats.get("failed"):
        terminalreporter.write_line(
            f"random examples are of seed {SEED}; CONSTRAINED_K2_TESTS_SEED={SEED} repeats them"
        )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Have pytest-xdist keep together what shares a server, whatever ``--dist`` says."""
    return ByGroup(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what belongs to another level, and put the longest groups first: the processes end at about the same time.

    pytest-xdist refuses to run if two processes collect different ids, so an id from a set's order or an address is an
    error here: it would fail only now and then.
    """
    if changing := [item.nodeid for item in items if re.search(r"frozenset\(|\{'[^':]*'[,}]|\bat 0x", item.nodeid)]:
        raise pytest.UsageError(f"test ids that differ between processes, give them ids=: {changing}")

    _leave_out(config, items)

    def rank(item: pytest.Item) -> tuple[int, bool, bool]:
        name = group(item.nodeid)
        number = next((number for number, part in enumerate(LONGEST) if part in name), len(LONGEST))
        return number, not item.get_closest_marker("server"), not item.get_closest_marker("slow")

    items.sort(key=rank)


def _leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what this level does not run."""
    out = {"fast": ("server", "slow", "only_all"), "default": ("only_all",), "all": ()}[LEVEL]
    left = {item for item in items if any(item.get_closest_marker(name) for name in out)}
    if LEVEL == "fast":
        left |= _untried([item for item in items if item not in left])
    if left:
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]


def _untried(items: list[pytest.Item]) -> set[pytest.Item]:
    """The cases of a test beyond an eighth of them, and beyond four: others in each commit, by the seed."""
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left: set[pytest.Item] = set()
    for name, cases in tests.items():
        untried = len(cases) - max(4, len(cases) // 8)
        left |= set(random.Random(f"{SEED} {name}").sample(cases, max(0, untried)))
    return left


@pytest.fixture(scope="session")
def small_vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    """Some 1,024 tokens made on the spot, with Kimi's special tokens behind them."""
    directory = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(directory)
    return Vocabulary.from_pretrained(directory)


@pytest.fixture(scope="session")
def real_tokenizer() -> Path:
    """The directory of Kimi K2's own tokenizer."""
    return data("kimi_k2/tokenizer")


@pytest.fixture(scope="session")
def real_vocabulary(real_tokenizer: Path) -> Vocabulary:
    """Kimi K2's own vocabulary."""
    return Vocabulary.from_pretrained(real_tokenizer)


@pytest.fixture(scope="session")
def small_compiler(small_vocabulary: Vocabulary) -> Compiler:
    """A compiler over the small vocabulary."""
    return Compiler(small_vocabulary)


@pytest.fixture(scope="session")
def real_compiler(real_vocabulary: Vocabulary) -> Compiler:
    """A compiler over the real vocabulary."""
    return Compiler(real_vocabulary)


@pytest.fixture(params=["small", pytest.param("real", marks=pytest.mark.slow)])
def compiler(request: pytest.FixtureRequest) -> Compiler:
    """A compiler over each vocabulary in turn."""
    found: Compiler = request.getfixturevalue(f"{request.param}_compiler")
    return found


@pytest.fixture(scope="session")
def k3_small_compiler(tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    """A compiler over a thousand tokens with Kimi K3's special tokens behind them."""
    directory = tmp_path_factory.mktemp("k2")
    write_tokenizer(directory)
    return Compiler(Vocabulary.from_pretrained(as_k3(directory, tmp_path_factory.mktemp("k3"))))


@pytest.fixture(scope="session")
def k3_real_compiler(real_tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    """A compiler over Kimi K3's own vocabulary."""
    return Compiler(Vocabulary.from_pretrained(as_k3(real_tokenizer, tmp_path_factory.mktemp("real"))))


@pytest.fixture
def masks_by_llguidance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have LLGuidance compute every mask in arguments, also those that need no engine."""
    monkeypatch.setattr(grammar_text, "direct_model", lambda *_: None)
