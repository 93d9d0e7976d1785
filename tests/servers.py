"""Real servers that files of tests share: one is started for all tests that need the same flags, whatever their file."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest

from constrained_k2.evaluation.server import (
    ADOPTED_FLAGS,
    BACKEND_FLAGS,
    CONSTRAINED_FLAGS,
    KIMI_K3_FLAGS,
    STRICT_FLAGS,
    VllmServer,
    rust_front_end,
)
from constrained_k2.testing import build_model
from tests.data import rust_front_end_binary
from tests.warm import WarmServer

NGRAM = json.dumps({"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1})
SCRIPTED = "scripted:ScriptedLogitsProcessor"
# vLLM's kimi_k2 parser: the front end sends structural tags, or nothing and the prompt is read.
OTHER_PARSER = {
    "tag_structured_output": ADOPTED_FLAGS,
    "tag_logits_processor": (*STRICT_FLAGS, *CONSTRAINED_FLAGS[-2:]),
    "prompt_structured_output": (
        *STRICT_FLAGS[:3],
        *("--additional-config", '{"constrained_k2": {"route": "structured_output", "adopt": "prompt"}}'),
    ),
    "prompt_logits_processor": (
        *STRICT_FLAGS[:3],
        *CONSTRAINED_FLAGS[-2:],
        *("--additional-config", '{"constrained_k2": {"adopt": "prompt"}}'),
    ),
    "tag_reasoning": (*ADOPTED_FLAGS, "--reasoning-parser", "kimi_k2"),
}
RUST = "rust_"
SERVERS: dict[str, tuple[Literal["kimi_k2", "llama"], tuple[str, ...]]] = {
    # The shape of the random model, and the flags.
    "structured_output": ("kimi_k2", (*BACKEND_FLAGS, "--logits-processors", SCRIPTED)),
    "logits_processor": ("kimi_k2", (*CONSTRAINED_FLAGS, SCRIPTED)),
    "prompts": (
        "llama",  # long prompts are slow to read for a model shaped as Kimi K2
        (*CONSTRAINED_FLAGS, SCRIPTED, "--reasoning-parser", "kimi_k2", "--trust-request-chat-template"),
    ),
    "ngram": ("llama", (*BACKEND_FLAGS, "--speculative-config", NGRAM)),
    **{
        f"{front_end}{name}": ("llama", flags)
        for front_end in (RUST, "python_")
        for name, flags in OTHER_PARSER.items()
    },
}


@contextmanager
def kimi_k3_server(directory: Path, *flags: str) -> Iterator[VllmServer]:
    """A server of a random model with Kimi K3's tokenizer; its files are written into the directory."""
    model = build_model(directory / "model", arch="llama", wire_format="kimi_k3")
    tests = [Path(__file__).parent / "vllm_plugin"]
    with WarmServer(model, (*flags, *KIMI_K3_FLAGS), log=directory / "server.log", python_path=tests) as started:
        yield started


def on(*names: str, only_all: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    """Run the test on each of these servers, which its fixture ``server`` then is; on some at the level ``all`` only."""
    more = (pytest.param(name, marks=pytest.mark.only_all) for name in only_all)
    return pytest.mark.parametrize("server", [*names, *more], indirect=True, scope="session")


@pytest.fixture(scope="session", params=["structured_output", "logits_processor"])
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[VllmServer]:
    """A server of each route in turn; a file may ask for others by ``on``, or have a fixture of its own."""
    directory = tmp_path_factory.mktemp("server")
    arch, flags = SERVERS[request.param]
    model = build_model(directory / "model", arch=arch)
    python_path = [Path(__file__).parent / "vllm_plugin"]
    environment = rust_front_end(rust_front_end_binary()) if request.param.startswith(RUST) else {}
    log = directory / "server.log"
    with WarmServer(model, flags, log=log, python_path=python_path, environment=environment) as started:
        yield started


_SHARING = ("test_server.py", "test_server_refusals.py", "test_parsing_server.py", "test_repair_server.py",
            "test_aborts_server.py", "test_doctor_server.py", "test_front_ends_server.py",
            "test_declining_server.py", "test_forms_server.py")  # fmt: skip
_STARTING = ("test_doctor_server.py", "test_doctor_tags_server.py", "test_processor_v2.py",
             "test_finish_budget_engine.py", "test_server_start.py")  # fmt: skip
# A server of theirs takes up to 9 GiB: one at a time, and first, before other servers wait for their next test.
_TOPOLOGIES = ("test_ranks_server.py", "test_nodes_server.py", "test_ranks_refused_server.py",
               "test_ranks_adoption_server.py", "test_prefill_decode_server.py")  # fmt: skip


def group(nodeid: str) -> str:
    """The tests that pytest-xdist must run in one process: those of one shared server, else of one file.

    A test that starts a server or an engine of its own is a group, so that the processes end at about the same time.
    """
    path, _, name = nodeid.partition("::")
    if path.endswith(_TOPOLOGIES):
        return "server topologies"
    if "clients/test_" in path:
        return "server clients"
    if path.endswith(_SHARING):
        for parameter in name.partition("[")[2].rstrip("]").split("-"):
            if parameter in SERVERS:
                return f"server {parameter}"
    return nodeid if path.endswith(_STARTING) else path
