"""Trains the stand-in and keeps a log of how it went."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from constrained_k2.evaluation.standin.dialogs import answered_dialogs
from constrained_k2.evaluation.standin.faults import Faults
from constrained_k2.evaluation.standin.network import Network
from constrained_k2.evaluation.standin.sequences import IGNORED, Sequences
from constrained_k2.evaluation.standin.shape import Shape
from constrained_k2.evaluation.standin.start import lay_out_copying
from constrained_k2.evaluation.standin.tokenizer import (
    dialog_texts,
    phrasing,
    stand_in_vocabulary,
    train_vocabulary,
    write_ranks,
)
from constrained_k2.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to train.

    Attributes:
        steps: How many.
        batch: Dialogs a step.
        rate: Learning rate of the matrices (Muon).
        other_rate: Of embedding and norms (AdamW).
        warm_up: Steps until the full rate; over the last 40 % of the steps it goes down to zero.
        balance: Weight of the experts' balance in the loss.
        seed: Of weights and data.
        longest: Dialogs of more tokens are left out.
        every: Steps between two lines of the log.
        keep: Steps between two copies of the weights.
        texts: Dialogs that the vocabulary is trained on.
        tokens: Of the vocabulary, before numbers and spaced words are added.
        faults: Of the calls that it learns from.
    """

    steps: int = 1400
    batch: int = 4
    rate: float = 0.02
    other_rate: float = 0.007
    warm_up: int = 40
    balance: float = 0.01
    seed: int = 0
    longest: int = 1152
    every: int = 100
    keep: int = 100
    texts: int = 300
    tokens: int = 1000
    faults: Faults = field(default_factory=lambda: Faults(number=0.15, enum=0.15, name=0.06, missing=0.03))


def train(
    vocabulary: Vocabulary,
    recipe: Recipe,
    say: Callable[[dict[str, float]], None],
    keep: Callable[[Network, int], None] = lambda *_: None,
) -> Network:
    """Train a network.

    Args:
        vocabulary: The stand-in's.
        recipe: How.
        say: Takes each line of the log.
        keep: Takes the network and the step, every so many steps.
    """
    torch.manual_seed(recipe.seed)
    network = Network(Shape(vocabulary.size))
    lay_out_copying(network)
    matrices = [weight for name, weight in network.named_parameters() if weight.ndim > 1 and name != "embedding"]
    others = [weight for name, weight in network.named_parameters() if weight.ndim == 1 or name == "embedding"]
    optimizers = [
        torch.optim.Muon(matrices, lr=recipe.rate, weight_decay=0.0),
        torch.optim.AdamW(others, lr=recipe.other_rate, weight_decay=0.0, betas=(0.9, 0.98)),
    ]
    sequences = Sequences(vocabulary)
    dialogs = answered_dialogs(recipe.seed + 1, held_out=False, faults=recipe.faults)
    batches = sequences.batches(dialogs, recipe.batch, recipe.longest)
    held_out = list(islice(sequences.batches(answered_dialogs(recipe.seed + 2, held_out=True), 8, recipe.longest), 8))
    began, tokens, recent = time.monotonic(), 0, []
    for step, (ids, targets) in enumerate(islice(batches, recipe.steps), 1):
        factor = min(1.0, step / recipe.warm_up, (recipe.steps - step) / (0.4 * recipe.steps) + 0.01)
        for optimizer, rate in zip(optimizers, (recipe.rate, recipe.other_rate), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * factor
        loss, balance = _loss(network, ids, targets)
        (loss + recipe.balance * balance).backward()
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        tokens += ids.numel()
        recent.append(loss.item())
        if step % recipe.every == 0 or step == recipe.steps:
            line = {"step": step, "tokens": tokens, "loss": sum(recent) / len(recent), "balance": balance.item()}
            say(line | measure(network, held_out, vocabulary) | {"seconds": time.monotonic() - began})
            recent.clear()
        if step % recipe.keep == 0:
            keep(network, step)
    return network


def _loss(network: Network, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Cross entropy over the assistant's tokens, in nats, and the experts' balance."""
    with torch.autocast("cpu", torch.bfloat16):
        states, balance = network(ids)
        wanted = targets != IGNORED
        logits = network.logits(states[wanted])
    return functional.cross_entropy(logits.float(), targets[wanted]), balance


@torch.no_grad()  # type: ignore[untyped-decorator]
def measure(network: Network, batches: list[tuple[Tensor, Tensor]], vocabulary: Vocabulary) -> dict[str, float]:
    """How well it foresees held-out answers, each token given the right ones before it.

    Returns:
        ``held_out_loss`` in nats a token, the share of ``tokens_right``, and the shares of whole answers whose every
        token was the likeliest: ``calls_right`` (messages with calls) and ``texts_right``.
    """
    section = vocabulary.format.section_begin
    losses, tokens = [], []
    calls: list[bool] = []
    texts: list[bool] = []
    for ids, targets in batches:
        with torch.autocast("cpu", torch.bfloat16):
            states, _ = network(ids)
            logits = network.logits(states).float()
        wanted = targets != IGNORED
        losses.append(functional.cross_entropy(logits[wanted], targets[wanted]).item())
        right = logits.argmax(-1) == targets
        tokens.append(right[wanted].float().mean().item())
        for row in range(len(ids)):
            for start, end in _spans(wanted[row]):
                (calls if section in targets[row, start:end] else texts).append(bool(right[row, start:end].all()))
    return {
        "held_out_loss": sum(losses) / len(losses),
        "tokens_right": sum(tokens) / len(tokens),
        "calls_right": sum(calls) / len(calls),
        "texts_right": sum(texts) / len(texts),
    }


def _spans(marked: Tensor) -> Iterator[tuple[int, int]]:
    """The runs of True in a bool ``[length]``."""
    start = None
    for position, here in enumerate([*marked.tolist(), False]):
        if here and start is None:
            start = position
        elif not here and start is not None:
            yield start, position
            start = None


def train_and_write(out: Path, recipe: Recipe, say: Callable[[str], None], copies: Path | None = None) -> None:
    """Train vocabulary and weights, and write what ships: both, and the log with the recipe as its first line.

    Args:
        out: The directory; made when it is not there.
        recipe: How.
        say: Takes the log's lines as they come.
        copies: A directory for weights from on the way, made when it is not there; None for none.
    """
    for directory in (out, copies):
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
    ranks = train_vocabulary(dialog_texts(recipe.texts, recipe.seed), phrasing(), recipe.tokens)
    write_ranks(out / "tiktoken.model", ranks)
    with (out / "training.jsonl").open("w") as log:

        def write(line: dict[str, Any]) -> None:
            rounded = {key: round(value, 4) if isinstance(value, float) else value for key, value in line.items()}
            log.write(json.dumps(rounded) + "\n")
            log.flush()
            say(json.dumps(rounded))

        def keep(network: Network, step: int) -> None:
            if copies is not None:
                write_weights(copies / f"weights-{step}.safetensors", network)

        write(asdict(recipe))
        network = train(stand_in_vocabulary(ranks), recipe, write, keep)
    write_weights(out / "weights.safetensors", network)


def write_weights(path: Path, network: Network) -> None:
    """Write a network's weights in bfloat16."""
    weights = {name: weight.to(torch.bfloat16) for name, weight in network.state_dict().items()}
    save_file(weights, path, metadata={"format": "pt"})
