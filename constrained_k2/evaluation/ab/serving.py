"""Sends an A/B run's requests to given servers, or to vLLM servers started on this machine."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from constrained_k2.evaluation.ab.arms import Arm
from constrained_k2.evaluation.ab.changes import ask_again, missing_changes
from constrained_k2.evaluation.ab.directory import RunDirectory
from constrained_k2.evaluation.ab.live import LiveFigures
from constrained_k2.evaluation.ab.runner import AttemptLimits, run
from constrained_k2.evaluation.server import (
    CONSTRAINED_FLAGS,
    KIMI_K3_FLAGS,
    KIMI_K3_STRICT_FLAGS,
    STRICT_FLAGS,
    WITHOUT_PLUGIN,
    VllmServer,
)
from constrained_k2.explain.turn import TurnExplainer
from constrained_k2.formats.kimi_k2 import KIMI_K2
from constrained_k2.formats.kimi_k3 import KIMI_K3
from constrained_k2.vocabulary.vocabulary import Vocabulary

TEMPERATURE = 0.7  # between the recommendations of the model cards: 0.6 for Kimi-K2-Instruct, 1.0 for Kimi-K2-Thinking

CPU_FLAGS = (
    "--dtype=float32",  # bfloat16 is many times slower on a CPU without AVX-512
    "--max-num-seqs=48",
    "--block-size=32",  # of 128, the default, the arms of a server share fewer tokens of a prompt
)
ALL_CORES = {  # all cores for the model: two of them served a small model twice as fast as one
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    "OMP_NUM_THREADS": f"{os.cpu_count()}",
    "OMP_WAIT_POLICY": "passive",  # waiting threads leave their cores to the server's other processes
}


class Served(NamedTuple):
    """A vLLM server, and the arms that it answers."""

    name: str  # of its log
    flags: Sequence[str]  # besides those that a small model on a CPU needs
    arms: Sequence[Arm]  # without addresses
    environment: Mapping[str, str] = {}  # its additional variables


def _servers(constrained: Sequence[str], strict: Sequence[str]) -> tuple[Served, ...]:
    presets = tuple(Arm(preset, preset=preset) for preset in ("unconstrained", "constrained", "nearest"))
    alone = Served("vllm_strict", strict, (Arm("vllm-strict"),), WITHOUT_PLUGIN)
    return (Served("constrained_k2", constrained, presets), alone)


SERVERS: Mapping[str, tuple[Served, ...]] = {
    KIMI_K2.name: _servers(CONSTRAINED_FLAGS, STRICT_FLAGS),
    KIMI_K3.name: _servers((*CONSTRAINED_FLAGS, *KIMI_K3_FLAGS), KIMI_K3_STRICT_FLAGS),
}
"""Name of a wire format -> the servers of a checkpoint, one after the other: two would share this machine's cores."""


class Sending(NamedTuple):
    """A run's directory, and how its requests are sent."""

    directory: RunDirectory  # the servers' logs are also written there
    limits: AttemptLimits
    retry_failed: bool = False  # send requests again that failed before
    explained: int = 0  # samples that the constrained arm is asked again, for what the constraint changed
    is_shown: bool = True  # live figures
    say: Callable[[str], None] = print  # receives progress messages

    def serve(self, model: Path, servers: Sequence[Served] | None = None) -> None:
        """Start each server whose arms lack answers, and send those; raises ``RuntimeError`` if one does not start.

        The default is ``SERVERS`` for the wire format of the directory.
        """
        for served in SERVERS[self.directory.model_family] if servers is None else servers:
            names = [arm.name for arm in served.arms]
            done = min(len(self.directory.done_keys(name, but_failed=self.retry_failed)) for name in names)
            # The other arms have the same mask; an arm that never declines also shows what a threshold would decline.
            asked_again = [arm for arm in served.arms if arm.preset == "nearest"]
            again = [arm.name for arm in asked_again if missing_changes(self.directory, arm, self.explained)]
            if done < self.directory.answers or again:
                log = self.directory.path / f"{served.name}.log"
                self.say(f"Starting vLLM for {' and '.join(arm.name for arm in served.arms)} (log: {log}) …")
                environment = {**ALL_CORES, **served.environment}
                with VllmServer(model, (*served.flags, *CPU_FLAGS), log=log, environment=environment) as server:
                    arms = [replace(arm, url=server.url) for arm in served.arms]
                    self.ask(arms)
                    if again:
                        self.explain([arm for arm in arms if arm.name in again], Vocabulary.from_pretrained(model))

    def ask(self, arms: Sequence[Arm]) -> None:
        """Send the remaining requests."""
        how: dict[str, Any] = {"limits": self.limits, "retry_failed": self.retry_failed}
        with LiveFigures(self.directory, arms, retry_failed=self.retry_failed, is_shown=self.is_shown) as figures:
            asyncio.run(run(self.directory, arms, **how, on_answer=figures.add))

    def explain(self, arms: Sequence[Arm], vocabulary: Vocabulary) -> None:
        """Send the remaining requests that tell what the constraint changed."""
        asked: dict[str, Any] = {"limits": self.limits, "count": self.explained, "say": self.say}
        asyncio.run(ask_again(self.directory, arms, TurnExplainer(vocabulary), **asked))
