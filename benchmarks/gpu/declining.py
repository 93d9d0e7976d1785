"""Compares the kernels that decline calls with the reference in host memory."""

import numpy as np
import torch

from benchmarks.gpu.results import Recorder
from constrained_k2.kernels import triton_declining
from constrained_k2.kernels.declining import NamedRows

_THRESHOLD = 0.35
_TOLERANCE = 1e-4  # of probabilities


def check(record: Recorder, rows: tuple[int, ...], widths: tuple[int, ...], device: str) -> None:
    """Record one check: probabilities, and rows that are closed, over some shapes."""
    wrong = ""
    for seed, (count, width) in enumerate((count, width) for count in rows for width in widths):
        chance = np.random.default_rng(seed)
        logits = torch.from_numpy(chance.normal(size=(count, width)).astype(np.float32)) * 4
        meant = [np.sort(chance.choice(width, width // 3, replace=False)).astype(np.int32) for _ in range(count)]
        closing = [None if number % 5 == 4 else number % width for number in range(count)]
        places = [-1 if number % 7 == 6 else number for number in range(count)]
        reference = NamedRows(meant, closing, places, torch.device("cpu"))
        reference.measure(logits)
        named = NamedRows(meant, closing, places, torch.device(device))
        on_device = logits.to(device)
        arguments = on_device, named.rows, named.plan
        triton_declining.measure(*arguments, named.ids, named.chances)
        triton_declining.decline(*arguments, named.chances, _THRESHOLD)
        chances = named.chances.cpu()
        if (chances - reference.chances).abs().max() > _TOLERANCE:
            wrong = wrong or f"{count} rows, width {width}: other probabilities"
        reference.chances.copy_(chances)  # so that a probability at the threshold decides alike
        reference.decline(logits, _THRESHOLD)
        if not torch.equal(on_device.cpu(), logits):
            wrong = wrong or f"{count} rows, width {width}: other rows are closed"
    record.check("calls are declined as by the reference", passed=not wrong, note=wrong)
