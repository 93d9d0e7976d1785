"""A scripted model whose names have known probabilities, and the turn that it writes, in the slow and obvious way."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.worker import gpu_model_runner

from constrained_k2 import Compiler, ToolCallSpec, Vocabulary
from tests.kit.walks import ids_of
from tests.vllm_plugin.scheduling import ScriptedEngine
from tests.vllm_plugin.served import NEVER


class Speaker:
    """Means its script, a turn, but at some tokens hardly: then other tokens together are likelier than the script's.

    ``doubts`` has, by position in the script, the probability of its token.
    """

    def __init__(self, script: Sequence[int], size: int, doubts: Mapping[int, float]) -> None:
        self.script, self._size, self._doubts = list(script), size, doubts

    def logits(self, prefix: Sequence[int]) -> torch.Tensor:
        """float32 ``[size]``, after some tokens of a turn."""
        at = len(prefix)
        chance = np.random.default_rng(zlib.crc32(np.asarray(prefix, dtype=np.int64).tobytes()))
        logits = torch.from_numpy(chance.normal(size=self._size).astype(np.float32)) - 30
        token = self.script[at] if at < len(self.script) and self.script[:at] == list(prefix) else None
        if token is not None:
            share = self._doubts.get(at, 0.99)
            other = int(chance.integers(0, 200))  # in the small vocabulary a byte
            logits[other] = float(np.log((1 - share) / share))
            logits[token] = 0.0
        return logits


def spoken(speaker: Speaker, body: Any, vocabulary: Vocabulary, threshold: float, limit: int) -> list[int]:
    """The greedy turn of a speaker."""
    compiler = Compiler(vocabulary, undeclared_calls="decline", call_threshold=threshold, mask_cache_bytes=0)
    matcher = compiler.compile(ToolCallSpec.from_openai(body)).matcher()
    ids: list[int] = []
    while len(ids) < limit and not matcher.is_terminated():
        logits, intent = speaker.logits(ids), matcher.intent()
        allowed = torch.full((vocabulary.size,), NEVER)
        allowed[ids_of(matcher)] = 0.0
        token = int((logits + allowed).argmax())
        if intent is not None and intent.closing is not None:
            chance = torch.softmax(logits.double(), 0)[torch.from_numpy(intent.meant).long()].sum().item()
            token = intent.closing if chance < threshold else token
        assert matcher.accept_tokens([token])
        ids.append(token)
    return ids


class MaskingEngine(ScriptedEngine):
    """Has logits, which it masks as a V1 model runner does."""

    def masked_logits(
        self, scheduled: SchedulerOutput, masks: GrammarOutput | None, drafts: Mapping[str, Sequence[int]],
        logits_of: Callable[[str, list[int]], torch.Tensor],
    ) -> torch.Tensor:  # fmt: skip
        """float32 ``[rows, size]``: by request, behind each of its drafts; ``logits_of`` a request and its tokens."""
        rows = [
            logits_of(name, [*self.outputs[name], *ids[:offset]])
            for name, ids in drafts.items()
            for offset in range(len(ids) + 1)
        ]
        logits = torch.stack(rows)
        if masks is not None:
            gpu_model_runner.apply_grammar_bitmask(scheduled, masks, SimpleNamespace(req_ids=[*drafts]), logits)
        return logits


class SpeakingEngine(MaskingEngine):
    """Samples greedily from the speakers' logits, drafts verified."""

    speakers: dict[str, Speaker]

    def _sample(self, scheduled: SchedulerOutput, masks: GrammarOutput | None) -> ModelRunnerOutput:
        names = list(reversed(scheduled.num_scheduled_tokens))  # the runner's batch has an order of its own
        drafts = {name: self._drafts_of(scheduled, name) for name in names}
        logits = self.masked_logits(scheduled, masks, drafts, lambda name, ids: self.speakers[name].logits(ids))
        best = iter(logits.argmax(dim=1).tolist())
        sampled = []
        for name, ids in drafts.items():
            found = [next(best) for _ in range(len(ids) + 1)]
            wrong = next((at for at, draft in enumerate(ids) if draft != found[at]), len(ids))
            sampled.append(found[: wrong + 1])
            self.outputs[name] += sampled[-1]
        return ModelRunnerOutput(names, {name: at for at, name in enumerate(names)}, sampled)

    def _drafts_of(self, scheduled: SchedulerOutput, name: str) -> list[int]:
        drafts = scheduled.scheduled_spec_decode_tokens.get(name, [])
        if not self._asynchronous:
            return list(drafts)
        known = self._drafted.get(name, [])[: len(drafts)]  # in the workers; the scheduler has what is legal of them
        return [*known, *([-1] * (len(drafts) - len(known)))]
