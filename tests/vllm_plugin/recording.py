"""A logits processor for tests: records which tokens are left in each row, in every rank."""

import hashlib
import os
from pathlib import Path
from typing import Any

import torch
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor

DIRECTORY = (
    "CONSTRAINED_K2_TEST_RECORDS"  # as in tests/kit/servers.py: a folder with a file for each process, a line a step
)


class RecordingLogitsProcessor(LogitsProcessor):
    """Behind ours in the list: writes a digest of the finite logits' positions."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._path = Path(os.environ[DIRECTORY]) / str(os.getpid())

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        pass

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        left = logits.isfinite()
        digest = hashlib.sha256(left.numpy().tobytes()).hexdigest()[:16]
        with self._path.open("a") as file:
            file.write(f"{len(left)} rows, {int(left.sum())} tokens, {digest}\n")
        return logits
