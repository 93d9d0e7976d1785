"""The ways to spread one server over ranks and processes that vLLM's CPU build can run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from constrained_k2.evaluation.server import SERVE, VllmServer

_UNBOUND = {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}  # by default vLLM binds each rank to a NUMA node of its own


@dataclass(frozen=True, slots=True)
class Topology:
    """One way to spread a server."""

    flags: tuple[str, ...] = ()  # the flags of `vllm serve`
    engines: int = 1  # number of engine cores
    workers: int = 1  # number of ranks in an engine; if there is one in all, it is in the engine core's process
    api_servers: int = 1  # number of API servers
    is_dense: bool = False  # true if vLLM's CPU build cannot run it with a mixture-of-experts model
    environment: Mapping[str, str] = field(default_factory=lambda: _UNBOUND)  # environment variables

    def server(
        self,
        model: Path,
        flags: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        python_path: Sequence[Path] = (),
    ) -> VllmServer:
        """Return a server of this topology, not started, as :class:`VllmServer` takes it."""
        all_environment = {**self.environment, **(environment or {})}
        return VllmServer(
            model,
            (*self.flags, *flags),
            log=log,
            python_path=python_path,
            environment=all_environment,
            entry=SERVE,
        )


ONE_RANK = "one rank"
TOPOLOGIES: Mapping[str, Topology] = {
    ONE_RANK: Topology(),
    "tensor parallel 2": Topology(("--tensor-parallel-size=2",), workers=2),
    "two API servers": Topology(("--api-server-count=2",), api_servers=2),
    "tensor parallel 2, two API servers": Topology(
        ("--tensor-parallel-size=2", "--api-server-count=2"), workers=2, api_servers=2
    ),
    "data parallel 2": Topology(("--data-parallel-size=2",), engines=2, api_servers=2, is_dense=True),
}
