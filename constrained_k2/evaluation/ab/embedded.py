"""The embedded default: the stand-in on real vLLM servers of this machine, so that nothing has to be given."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from constrained_k2.evaluation.ab.arms import Arm
from constrained_k2.evaluation.ab.directory import RunDirectory
from constrained_k2.evaluation.ab.endpoint import Limits
from constrained_k2.evaluation.ab.live import LiveFigures
from constrained_k2.evaluation.ab.records import done_keys
from constrained_k2.evaluation.ab.runner import run
from constrained_k2.evaluation.ab.sample import Sample, read_sample
from constrained_k2.evaluation.server import CONSTRAINED_FLAGS, STRICT_FLAGS, WITHOUT_PLUGIN, VllmServer
from constrained_k2.evaluation.standin.build import build_stand_in
from constrained_k2.evaluation.standin.dialogs import held_out_samples

TEMPERATURE = 0.7
"""Between the 0.6 that the model card of Kimi-K2-Instruct recommends and the 1.0 of Kimi-K2-Thinking's."""

_MAX_TOKENS = 400  # the longest right answer has about 150; what runs on beyond this does not end


@dataclass(frozen=True, slots=True)
class Served:
    """One server of the comparison, and who is asked there.

    Attributes:
        name: Of its log.
        flags: Of the server, besides those that a small model on a CPU needs.
        arms: Their addresses are filled in when it runs.
        environment: Variables of its own.
    """

    name: str
    flags: Sequence[str]
    arms: Sequence[Arm]
    environment: Mapping[str, str] = field(default_factory=dict)


SERVERS: tuple[Served, ...] = (
    Served(
        "constrained_k2",
        CONSTRAINED_FLAGS,
        (Arm("unconstrained", "", "unconstrained"), Arm("constrained", "", "constrained")),
    ),
    Served(
        "vllm_strict",
        STRICT_FLAGS,
        (Arm("vllm-strict", ""),),
        WITHOUT_PLUGIN,
    ),
)
"""One after the other: two at a time would share this machine's cores and memory."""


def stand_in_samples(count: int, seed: int = 0) -> Iterator[Sample]:
    """Requests that the stand-in has never seen, with the calls they ask for."""
    for number, line in enumerate(held_out_samples(count, seed)):
        yield read_sample(line | {"max_tokens": _MAX_TOKENS}, number + 1)


@dataclass(frozen=True, slots=True)
class Embedded:
    """The stand-in, served and asked.

    Attributes:
        directory: The run; the model and the servers' logs go there too.
        limits: What one request may cost, and how many are out at a time.
        retry_failed: Ask again what failed before.
        is_shown: Whether to show live figures.
        say: Takes what is done, for whoever waits.
    """

    directory: RunDirectory
    limits: Limits
    retry_failed: bool = False
    is_shown: bool = True
    say: Callable[[str], None] = print

    def run(self, servers: Sequence[Served] = SERVERS) -> None:
        """Build the model, serve it, and ask every arm what it has not answered yet.

        Raises:
            RuntimeError: A server does not come up.
        """
        model = build_stand_in(self.directory.path / "model")
        for served in servers:
            if any(self._is_left(arm) for arm in served.arms):
                self._ask(model, served)

    def _is_left(self, arm: Arm) -> bool:
        done = done_keys(self.directory.records_path(arm.name), but_failed=self.retry_failed)
        return len(done) < self.directory.samples * self.directory.sampling.repetitions

    def _ask(self, model: Path, served: Served) -> None:
        directory = self.directory
        log = directory.path / f"{served.name}.log"
        self.say(f"Starting vLLM for {' and '.join(arm.name for arm in served.arms)} (log: {log}) …")
        with VllmServer(model, served.flags, log=log, environment=served.environment) as server:
            arms = [replace(arm, url=server.url) for arm in served.arms]
            with LiveFigures(directory, arms, is_shown=self.is_shown) as figures:
                asking = run(directory, arms, limits=self.limits, retry_failed=self.retry_failed, on_answer=figures.add)
                asyncio.run(asking)
