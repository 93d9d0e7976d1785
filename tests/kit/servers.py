"""Real servers that files of tests share: one is started for all tests that need the same flags, whatever their file."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import pytest

from benchmarks.ranks.topologies import TOPOLOGIES, Topology
from constrained_k2.evaluation.server import (
    ADOPTED_FLAGS,
    API_SERVER,
    BACKEND_FLAGS,
    CONSTRAINED_FLAGS,
    KIMI_K3_FLAGS,
    RENDER,
    SERVE,
    STRICT_FLAGS,
    WITHOUT_PLUGIN,
    VllmServer,
    rust_front_end,
)
from constrained_k2.testing import build_model
from tests.kit.data import rust_front_end_binary
from tests.kit.warm import WarmServer

DIRECTORY = "CONSTRAINED_K2_TEST_RECORDS"
"""The environment variable that names the folder of what :mod:`tests.vllm_plugin.recording` records."""
NGRAM = json.dumps({"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1})
PROCESSORS = ("scripted:ScriptedLogitsProcessor", "counting:CountingLogitsProcessor")
ADAPTER = "ADAPTER"  # in a flag: the directory of a LoRA adapter for the model
RUST = "rust_"
RECORDING = "recording:RecordingLogitsProcessor"
_TP2 = "tensor parallel 2, two API servers"


def settings(**ours: object) -> tuple[str, str]:
    """The flag with the operator's settings."""
    return "--additional-config", json.dumps({"constrained_k2": ours})


@dataclass(frozen=True)
class Kind:
    """The flags and the environment of a server, and its model."""

    flags: Sequence[str]
    arch: Literal["kimi_k2", "llama"] = "llama"
    wire_format: Literal["kimi_k2", "kimi_k3"] = "kimi_k2"
    environment: Mapping[str, str] = field(default_factory=dict)
    entry: Sequence[str] = API_SERVER
    topology: Topology | None = None


# vLLM's kimi_k2 parser: the front end sends structural tags, or nothing and the prompt is read.
_OTHER_PARSER = {
    "tag_structured_output": (*ADOPTED_FLAGS, "--reasoning-parser", "kimi_k2"),
    "tag_logits_processor": (*STRICT_FLAGS, *CONSTRAINED_FLAGS[-2:]),
    "prompt_structured_output": (*STRICT_FLAGS[:3], *settings(route="structured_output", adopt="prompt")),
    "prompt_logits_processor": (*STRICT_FLAGS[:3], *CONSTRAINED_FLAGS[-2:], *settings(adopt="prompt")),
}
# Requests by the dozen, of long prompts. A chunk of one token each would be more than a test's own client reads on a busy machine.
_MANY = ("--max-num-seqs=32", "--max-model-len=32768", "--max-num-batched-tokens=32768", "--stream-interval=4")
_STOCK_FLAGS = ("--enable-auto-tool-choice", "--tool-call-parser", "kimi_k2", "--reasoning-parser", "kimi_k2")
_K3_PARSER = ("--enable-auto-tool-choice", "--tool-call-parser", "kimi_k3")
_TEMPLATES = "--trust-request-chat-template"
_SCALE_OUT = "--enable-scale-out"
# One setting for each kind of process: the API servers read strict, the engine core or, on the logits-processor route, the
# workers finish_reserve.
_EACH_READS = {"strict": {"false": "json_object"}, "finish_reserve": 300}


def _spread(topology: str, *flags: str, arch: Literal["kimi_k2", "llama"] = "kimi_k2", **ours: object) -> Kind:
    """A server of several ranks or processes."""
    found = TOPOLOGIES[topology]
    if "--api-server-count=1" in flags:
        found = replace(found, api_servers=1)
    flags = (*found.flags, *flags, *settings(**_EACH_READS, **ours))
    return Kind(flags, "llama" if found.is_dense else arch, environment=found.environment, entry=SERVE, topology=found)


# A flag that no test needs absent is shared. In float32, since in bfloat16 the likeliest token can depend on the batch.
SERVERS: dict[str, Kind] = {
    "structured_output": Kind(
        (*BACKEND_FLAGS, "--logits-processors", *PROCESSORS, _SCALE_OUT, _TEMPLATES, "--dtype=float32", *_MANY,
         "--enable-lora", "--max-lora-rank=8", "--lora-modules", f"tuned={ADAPTER}", "--enable-prefix-caching"),
    ),
    "logits_processor": Kind((*CONSTRAINED_FLAGS, *PROCESSORS, _TEMPLATES, "--reasoning-parser", "kimi_k2")),
    "many_logits_processor": Kind((*CONSTRAINED_FLAGS, *PROCESSORS, *_MANY)),
    "ngram": Kind((*BACKEND_FLAGS, "--speculative-config", NGRAM)),
    "stock": Kind(_STOCK_FLAGS),
    "without_plugin": Kind(_STOCK_FLAGS, environment=WITHOUT_PLUGIN),
    "rendering": Kind((*BACKEND_FLAGS, _TEMPLATES), entry=RENDER),
    # Neither loads a tokenizer, and the first one's front end has no flag of this package.
    "generating_structured_output": Kind(
        ("--tokens-only", "--dtype=float32", *settings(route="structured_output"), "--logits-processors", *PROCESSORS)
    ),
    "generating_logits_processor": Kind(("--tokens-only", "--dtype=float32", *CONSTRAINED_FLAGS[-2:], *PROCESSORS)),
    "kimi_k3_structured_output": Kind(
        (*BACKEND_FLAGS, *KIMI_K3_FLAGS, "--logits-processors", *PROCESSORS, _SCALE_OUT), wire_format="kimi_k3"
    ),
    "kimi_k3_logits_processor": Kind((*CONSTRAINED_FLAGS, *PROCESSORS, *KIMI_K3_FLAGS), wire_format="kimi_k3"),
    "kimi_k3_ngram": Kind((*BACKEND_FLAGS, *KIMI_K3_FLAGS, "--speculative-config", NGRAM), wire_format="kimi_k3"),
    "kimi_k3_adopted": Kind(
        (*_K3_PARSER, *KIMI_K3_FLAGS, "--tool-strict-level", "parameter", _SCALE_OUT,
         *settings(route="structured_output", adopt="prompt")), wire_format="kimi_k3",
    ),
    "kimi_k3_stock": Kind((*_K3_PARSER, *KIMI_K3_FLAGS), wire_format="kimi_k3"),
    # Ranks: a server takes up to 9 GiB.
    "tp2_structured_output": _spread(_TP2, *BACKEND_FLAGS),
    "tp2_logits_processor": _spread(_TP2, *CONSTRAINED_FLAGS, "counting:CountingLogitsProcessor", RECORDING),
    "tp2_ngram": _spread("tensor parallel 2", *BACKEND_FLAGS, "--speculative-config", NGRAM, arch="llama"),
    "dp2_structured_output": _spread("data parallel 2", *BACKEND_FLAGS),
    "dp2_logits_processor": _spread("data parallel 2", *CONSTRAINED_FLAGS),
    # Two API servers are another server's.
    "dp2_adopted": _spread("data parallel 2", *STRICT_FLAGS, "--api-server-count=1", route="structured_output"),
    **{
        f"{front_end}{name}": Kind(flags)
        for front_end in (RUST, "python_")
        for name, flags in _OTHER_PARSER.items()
    },
}  # fmt: skip


def on(*names: str, only_all: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    """Run the test on each of these servers, which its fixture ``server`` then is; on some at the level ``all`` only."""
    more = (pytest.param(name, marks=pytest.mark.only_all) for name in only_all)
    return pytest.mark.parametrize("server", [*names, *more], indirect=True, scope="session")


def started(name: str, directory: Path, model: Path | None = None) -> Iterator[VllmServer]:
    """Run a server of :data:`SERVERS`; its log and, if none is given, its model are written into the directory."""
    kind = SERVERS[name]
    model = model or build_model(directory / "model", arch=kind.arch, wire_format=kind.wire_format)
    if any(ADAPTER in flag for flag in kind.flags):
        from tests.vllm_plugin.weights import write_adapter

        write_adapter(directory / "adapter", model)
    flags = [flag.replace(ADAPTER, str(directory / "adapter")) for flag in kind.flags]
    environment = rust_front_end(rust_front_end_binary()) if name.startswith(RUST) else kind.environment
    (records := directory / "records").mkdir()
    environment = {**environment, DIRECTORY: str(records)}
    python_path = [Path(__file__).parents[1] / "vllm_plugin"]
    log = directory / "server.log"
    with WarmServer(
        model, flags, log=log, python_path=python_path, environment=environment, entry=kind.entry
    ) as running:
        yield running


@pytest.fixture(scope="session", params=["structured_output", "logits_processor"])
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[VllmServer]:
    """A server of each route in turn; a test may ask for others by ``on``."""
    yield from started(request.param, tmp_path_factory.mktemp("server"))


_STARTING = ("test_doctor_server.py", "test_processor_v2.py", "test_server_start.py")
# A server of theirs takes up to 9 GiB: one at a time, and first, before other servers wait for their next test.
_TOPOLOGIES = "test_topologies_server.py"


def group(nodeid: str) -> str:
    """The tests that pytest-xdist must run in one process: those of one shared server, else of one file.

    A test that starts a server of its own is a group, so that the processes end at about the same time.
    """
    path, _, name = nodeid.partition("::")
    if path.endswith(_TOPOLOGIES):
        return "server topologies"
    if "clients/test_" in path:
        return "server clients"
    if "_server" in Path(path).name:
        for parameter in name.partition("[")[2].rstrip("]").split("-"):
            if parameter in SERVERS:
                return f"server {parameter}" if SERVERS[parameter].topology is None else "server topologies"
    return nodeid if path.endswith(_STARTING) else path
