"""The V2 logits processor's time on the host, driven as vLLM's runner drives it, without the runner."""

import json
import statistics
import time
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.results import Cell, Recorder, Table
from benchmarks.gpu.rows import Calls

_STEPS = 200
_WARM_UP = 150
_PROMPT = (5, 6, 7)


def measure(  # noqa: PLR0913 - a device and its sizes
    calls: Calls, rows: int, record: Recorder, end: float, *, device: str = "cuda", steps: int = _STEPS
) -> None:
    """Record the table, if vLLM is installed."""
    if find_spec("vllm") is None:
        record.not_run("the V2 processor's step on the host", "vLLM is not installed: its classes are part of the step")
        return
    record.say(f"{steps} steps of the V2 processor")
    from vllm import SamplingParams
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcRequestState

    slots = Slots(calls, rows, torch.device(device))
    state = LogitsProcRequestState(
        device=slots.device,
        max_num_reqs=rows,
        vocab_size=calls.workload.vocabulary.size,
        all_token_ids=SimpleNamespace(gpu=slots.tokens),
        prompt_len=SimpleNamespace(np=slots.prompt_lengths),
        prefill_len=SimpleNamespace(np=slots.prefill_lengths),
        total_len=SimpleNamespace(gpu=slots.lengths),
    )
    from constrained_k2.vllm_plugin import KimiK2LogitsProcessor

    processor: Any = KimiK2LogitsProcessor(_config(calls, rows), state)
    extra = {"constrained_k2": json.dumps(calls.body)}
    logits = torch.randn((rows, calls.workload.vocabulary.size), device=device)
    order = torch.arange(rows, dtype=torch.int32, device=device)
    context = LogitsContext(
        expanded_idx_mapping=order,
        idx_mapping=order,
        idx_mapping_np=np.arange(rows, dtype=np.int32),
        expanded_local_pos=torch.zeros_like(order),
        input_ids=order,
        pos=slots.lengths,
        seq_lens_upper_bound_np=slots.prefill_lengths,
    )
    samples: dict[str, list[float]] = {"begin": [], "apply": []}
    for number in range(-_WARM_UP, steps):
        if time.monotonic() > end and number > 1:
            break
        for slot in slots.begin_turns():
            processor.add_request(slot, SamplingParams(extra_args=extra, max_tokens=4096))
        start = time.perf_counter_ns()
        processor.apply_staged_writes()
        middle = time.perf_counter_ns()
        if slots.device.type == "cuda":
            torch.cuda.synchronize()  # the forward pass has ended
        again = time.perf_counter_ns()
        processor.apply(logits, context)
        last = time.perf_counter_ns()
        slots.sample()
        if number >= 0:
            samples["begin"].append((middle - start) / 1e3)
            samples["apply"].append((last - again) / 1e3)
    whole: tuple[tuple[Cell, ...], ...] = tuple(
        (name, statistics.median(found), sorted(found)[len(found) * 99 // 100], max(found))
        for name, found in samples.items()
    )
    note = f"{rows} rows inside calls; some requests end and others begin in most steps"
    record.table(Table("The V2 processor's step, µs on the host", ("", "median", "p99", "maximum"), whole, note))


class Slots:
    """The state of vLLM's V2 runner that a processor reads: tokens and lengths of each slot."""

    def __init__(self, calls: Calls, rows: int, device: torch.device) -> None:
        longest = max(len(calls.turn(number)[0].ids) for number in range(2 * rows))
        self.device = device
        self.tokens = torch.zeros((rows, len(_PROMPT) + 4 * longest), dtype=torch.int32, device=device)
        self.lengths = torch.zeros(rows, dtype=torch.int32, device=device)
        self.prompt_lengths = np.full(rows, len(_PROMPT), dtype=np.int32)
        self.prefill_lengths = np.zeros(rows, dtype=np.int32)
        self._calls = calls
        self._numbers = list(range(rows))
        self._ids: list[tuple[int, ...]] = [()] * rows
        self._steps = [0] * rows

    def begin_turns(self) -> list[int]:
        """Begin a turn in each slot whose last one has ended; return those slots."""
        ended = [slot for slot, ids in enumerate(self._ids) if self._steps[slot] >= len(ids)]
        for slot in ended:
            turn, begin = self._calls.turn(self._numbers[slot])
            if not self._ids[slot]:  # so that the rows of a batch are at different places
                begin += slot % (len(turn.ids) - 1 - begin)
            self._numbers[slot] += 1
            self._ids[slot], self._steps[slot] = turn.ids, begin
            known = [*_PROMPT, *turn.ids[:begin]]
            self.tokens[slot, : len(known)] = torch.tensor(known, dtype=torch.int32)
            self.lengths[slot] = len(known)
            self.prefill_lengths[slot] = len(known)
        return ended

    def sample(self) -> None:
        """Write each slot's next token, as the sampler does."""
        newest = [ids[step] for ids, step in zip(self._ids, self._steps, strict=True)]
        sampled = torch.tensor(newest, dtype=torch.int32).to(self.device)
        self.tokens[torch.arange(len(newest), device=self.device), self.lengths.long()] = sampled
        self.lengths += 1
        self._steps = [step + 1 for step in self._steps]


def _config(calls: Calls, rows: int) -> SimpleNamespace:
    """Return the part of vLLM's configuration that the processor reads."""
    model = SimpleNamespace(
        tokenizer=str(calls.directory),
        get_vocab_size=lambda: calls.workload.vocabulary.size,
        tokenizer_revision=None,
        trust_remote_code=False,
        max_model_len=4096,
        enable_trace_replay=False,
    )
    return SimpleNamespace(
        model_config=model,
        scheduler_config=SimpleNamespace(max_num_seqs=rows),
        additional_config={"constrained_k2": {"undeclared_keys": "allow"}},
        speculative_config=None,
        diffusion_config=None,
        num_speculative_tokens=0,
        parallel_config=SimpleNamespace(pipeline_parallel_size=1),
    )
