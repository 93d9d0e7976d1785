"""Initializes the weights with an induction circuit: previous-token heads, then a head that copies what followed.

A model this small finds the circuit by itself only after many times this training, so it is built in (Elhage et al., "A
Mathematical Framework for Transformer Circuits", 2021). Training then changes all of these weights.
"""

import torch
from torch import Tensor

from scripts.small_model.network import Attention, Network

_CONSTANT = 4.0
_SHARPNESS = 9.0  # nats that each rotary pair adds to the score where the offset matches
_ROTARY_PAIRS = 6
_MATCH = 6.0
_COPY = 4.0
_OTHER_HEADS = 0.3


@torch.no_grad()  # type: ignore[untyped-decorator]
def lay_out_copying(network: Network) -> None:
    """Write the circuit into a network's random weights, in place."""
    s = network.shape
    network.embedding[:, 0] = _CONSTANT
    constant = _CONSTANT / (((_CONSTANT**2 + s.hidden - 1) / s.hidden) ** 0.5)
    read = _orthonormal(s.hidden - 1, s.hidden - 1)  # the stream without its constant
    content = _without_constant(read[: s.value])
    subspaces = [_without_constant(read[s.value * (n + 1) : s.value * (n + 2)]) for n in range(2)]
    network.turn.copy_(_orthonormal(s.hidden, s.hidden))
    first, second = network.layers[0].attention, network.layers[1].attention
    for attention in (first, second):
        attention.kv_a.copy_(_orthonormal(s.kv_rank, s.hidden))
        attention.q_a.copy_(_orthonormal(s.q_rank, s.hidden))
        attention.o.mul_(_OTHER_HEADS)

    # First layer, heads 0 and 1 look one and two tokens back, and each writes to a subspace of its own.
    direction = torch.zeros(s.hidden)
    direction[0] = 1.0
    first.k_rotary.mul_(0.1)
    first.k_rotary[0 : 2 * _ROTARY_PAIRS : 2, 0] = 1.0
    frequencies = s.theta ** (-torch.arange(_ROTARY_PAIRS) / (s.rotary // 2))
    for head in range(2):
        start = head * (s.plain + s.rotary)
        first.q_b[start : start + s.plain + s.rotary].mul_(0.1)
        size = _SHARPNESS / (s.attention_scale * constant * constant)
        angles = frequencies * (head + 1)
        row = start + s.plain
        to_latent = first.q_a @ direction
        for pair in range(_ROTARY_PAIRS):
            first.q_b[row + 2 * pair] = size * angles[pair].cos() * to_latent
            first.q_b[row + 2 * pair + 1] = -size * angles[pair].sin() * to_latent
        _set_values(first, head, content, subspaces[head])

    # Second layer, heads 0 and 1 find where the last two tokens occurred before; each copies a part of what followed.
    looks_for, found_at = torch.cat([content, subspaces[0]])[: s.plain], torch.cat(subspaces)[: s.plain]
    for head in range(2):
        start = head * (s.plain + s.rotary)
        second.q_b[start : start + s.plain + s.rotary] = 0.0
        second.q_b[start : start + len(looks_for)] = _MATCH * looks_for @ second.q_a.T
        key = head * (s.plain + s.value)
        second.kv_b[key : key + s.plain] = 0.0
        second.kv_b[key : key + len(found_at)] = found_at @ second.kv_a.T
        copied = _without_constant(torch.eye(s.hidden - 1)[head * s.value : (head + 1) * s.value])
        _set_values(second, head, copied, _COPY * copied @ network.turn)


def _set_values(attention: Attention, head: int, read: Tensor, write: Tensor) -> None:
    """Make a head copy the dimensions ``read`` to the dimensions ``write``, both ``[value, hidden]``."""
    s = attention.shape
    row = head * (s.plain + s.value) + s.plain
    attention.kv_b[row : row + s.value] = read @ attention.kv_a.T
    attention.o[:, head * s.value : (head + 1) * s.value] = write.T


def _orthonormal(rows: int, columns: int) -> Tensor:
    return torch.linalg.qr(torch.randn(columns, rows)).Q.T.contiguous()


def _without_constant(rows: Tensor) -> Tensor:
    return torch.cat([torch.zeros(len(rows), 1), rows], 1)
