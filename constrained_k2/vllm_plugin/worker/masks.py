"""Chooses how a worker applies masks: in host memory or on a device."""

import torch

from constrained_k2.vllm_plugin.shared.matcher_factory import MatcherFactory
from constrained_k2.vllm_plugin.worker.device_masks import DeviceMasks
from constrained_k2.vllm_plugin.worker.host_masks import HostMasks
from constrained_k2.vllm_plugin.worker.row_masks import RowMasks


def row_masks(factory: MatcherFactory, rows: int, device: torch.device, *, pin: bool) -> RowMasks:
    """The masks of a worker whose steps have so many rows at most, ready for the first of them."""
    size = factory.vocabulary.size
    if device.type == "cpu":
        return HostMasks(size, rows)
    masks = DeviceMasks(size, rows, device, pin=pin)
    masks.warm_up(size)
    return masks
