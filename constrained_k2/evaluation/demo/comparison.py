"""Runs the A/B of the demo model on real vLLM servers of this machine."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from constrained_k2.evaluation.ab.arms import Arm
from constrained_k2.evaluation.ab.changes import ask_again, missing_changes
from constrained_k2.evaluation.ab.directory import RunDirectory
from constrained_k2.evaluation.ab.live import LiveFigures
from constrained_k2.evaluation.ab.runner import Limits, run
from constrained_k2.evaluation.bundled import DEMO_MODELS, HELD_OUT, build_demo_model, bundled_bodies
from constrained_k2.evaluation.sample import Sample, read_sample
from constrained_k2.evaluation.server import (
    CONSTRAINED_FLAGS,
    KIMI_K3_FLAGS,
    KIMI_K3_STRICT_FLAGS,
    STRICT_FLAGS,
    WITHOUT_PLUGIN,
    VllmServer,
)
from constrained_k2.explain.turn import TurnExplainer
from constrained_k2.formats.base import WireFormat
from constrained_k2.vocabulary.vocabulary import Vocabulary

if TYPE_CHECKING:
    from constrained_k2.testing.tokenizer import WireFormatName

TEMPERATURE = 0.7  # between the recommendations of the model cards: 0.6 for Kimi-K2-Instruct, 1.0 for Kimi-K2-Thinking
_MAX_TOKENS = 400  # the longest right answer has about 150, Kimi K3's 230


class Served(NamedTuple):
    """A vLLM server of the demo, and the arms that it answers."""

    name: str  # of its log
    flags: Sequence[str]  # besides those that a small model on a CPU needs
    arms: Sequence[Arm]  # without addresses
    environment: Mapping[str, str] = {}  # its additional variables


class Demo(NamedTuple):
    """The demo of one wire format."""

    model: "WireFormatName"  # key of DEMO_MODELS
    servers: tuple[Served, ...]  # one after the other, since two would share this machine's cores and memory

    @property
    def wire_format(self) -> WireFormat:
        """The wire format of the demo model."""
        return DEMO_MODELS[self.model].wire_format

    def samples(self, count: int, seed: int = 0) -> Iterator[Sample]:
        """As :func:`demo_samples`, with the fields that the model needs."""
        return demo_samples(count, seed, DEMO_MODELS[self.model].fields)


def _servers(constrained: Sequence[str], strict: Sequence[str]) -> tuple[Served, ...]:
    presets = tuple(Arm(preset, preset=preset) for preset in ("unconstrained", "constrained", "nearest"))
    alone = Served("vllm_strict", strict, (Arm("vllm-strict"),), WITHOUT_PLUGIN)
    return (Served("constrained_k2", constrained, presets), alone)


_KIMI_K2 = Demo("kimi_k2", _servers(CONSTRAINED_FLAGS, STRICT_FLAGS))
_KIMI_K3 = Demo("kimi_k3", _servers((*CONSTRAINED_FLAGS, *KIMI_K3_FLAGS), KIMI_K3_STRICT_FLAGS))
DEMOS: Mapping[str, Demo] = {demo.wire_format.name: demo for demo in (_KIMI_K2, _KIMI_K3)}
"""Name of a wire format -> its demo."""


def demo_samples(count: int, seed: int = 0, fields: Mapping[str, Any] | None = None) -> Iterator[Sample]:
    """Held-out requests with their expected calls; raises ``InvalidRequest`` if ``count`` is more than are bundled.

    ``fields`` are added to every request.
    """
    added = {"max_tokens": _MAX_TOKENS, **(fields or {})}
    for number, line in enumerate(bundled_bodies(HELD_OUT, count, seed)):
        yield read_sample(line | added, number + 1)


class DemoRun(NamedTuple):
    """A run: its directory, and how requests are sent, to given servers or to the demo's own."""

    directory: RunDirectory  # the demo's model and its servers' logs are also written there
    limits: Limits
    retry_failed: bool = False  # send requests again that failed before
    explained: int = 0  # samples that the constrained arm is asked again, for what the constraint changed
    is_shown: bool = True  # live figures
    say: Callable[[str], None] = print  # receives progress messages

    def run(self, servers: Sequence[Served] | None = None) -> None:
        """Start each server whose arms lack answers, and send those; raises ``RuntimeError`` if one does not start.

        The model and, by default, the servers are those of the directory's wire format.
        """
        demo = DEMOS[self.directory.model_family]
        model = build_demo_model(self.directory.path / "model", demo.model)
        for served in demo.servers if servers is None else servers:
            names = [arm.name for arm in served.arms]
            done = min(len(self.directory.done_keys(name, but_failed=self.retry_failed)) for name in names)
            again = any(missing_changes(self.directory, arm, self.explained) for arm in served.arms)
            if done < self.directory.answers or again:
                log = self.directory.path / f"{served.name}.log"
                self.say(f"Starting vLLM for {' and '.join(arm.name for arm in served.arms)} (log: {log}) …")
                with VllmServer(model, served.flags, log=log, environment=served.environment) as server:
                    arms = [replace(arm, url=server.url) for arm in served.arms]
                    self.ask(arms, Vocabulary.from_pretrained(model) if again else None)

    def ask(self, arms: Sequence[Arm], vocabulary: Vocabulary | None) -> None:
        """Send the remaining requests; with a vocabulary also those that tell what the constraint changed."""
        how: dict[str, Any] = {"limits": self.limits, "retry_failed": self.retry_failed}
        with LiveFigures(self.directory, arms, retry_failed=self.retry_failed, is_shown=self.is_shown) as figures:
            asyncio.run(run(self.directory, arms, **how, on_answer=figures.add))
        if vocabulary is not None:
            asked: dict[str, Any] = {"limits": self.limits, "count": self.explained, "say": self.say}
            asyncio.run(ask_again(self.directory, arms, TurnExplainer(vocabulary), **asked))
