"""Trains the small model and logs the training."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from constrained_k2.testing.tokenizer import WireFormatName, write_tokenizer
from constrained_k2.vocabulary.vocabulary import Vocabulary
from scripts.small_model.dialogs import Faults, answered_dialogs
from scripts.small_model.network import Network, Shape
from scripts.small_model.sequences import IGNORED, Sequences
from scripts.small_model.serving import write_model
from scripts.small_model.start import lay_out_copying
from scripts.small_model.tokenizer import dialog_texts, phrasing, train_vocabulary

_HELD_OUT = 8  # batches of held-out dialogs, whose answers each line of the log measures


@dataclass(frozen=True, slots=True)
class Recipe:
    """Hyperparameters."""

    steps: int = 1400
    batch: int = 4  # dialogs a step
    rate: float = 0.02  # of the matrices (Muon)
    other_rate: float = 0.007  # of embedding and norms (AdamW)
    warm_up: int = 40  # steps until the full rate; over the last 40 % of the steps it falls to zero
    balance: float = 0.01  # weight of the experts' load balance in the loss
    seed: int = 0  # of weights and data
    longest: int = 1152  # tokens of a dialog; longer ones are left out
    every: int = 100  # steps between two lines of the log
    texts: int = 300  # dialogs that the vocabulary is trained on
    tokens: int = 1000  # of the vocabulary, before numbers and words with spaces are added
    faults: Faults = field(default_factory=lambda: Faults(number=0.15, enum=0.15, name=0.06, missing=0.03))


RECIPES: Mapping[WireFormatName, Recipe] = {"kimi_k2": Recipe(), "kimi_k3": Recipe(longest=1920)}
"""The recipe for each wire format. A dialog has about half as many tokens again in Kimi K3's."""


def train(vocabulary: Vocabulary, recipe: Recipe, say: Callable[[dict[str, float]], None]) -> Network:
    """Train a network; ``say`` receives each line of the log."""
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
    held_out = list(
        islice(sequences.batches(answered_dialogs(recipe.seed + 2, held_out=True), 8, recipe.longest), _HELD_OUT)
    )
    started, tokens, recent = time.monotonic(), 0, []
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
            line |= measure(lambda ids: network.logits(network(ids)[0]), held_out)
            say(line | {"seconds": time.monotonic() - started})
            recent.clear()
    return network


def _loss(network: Network, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cross entropy over the assistant's tokens in nats, and the experts' load balance."""
    with torch.autocast("cpu", torch.bfloat16):
        states, balance = network(ids)
        wanted = targets != IGNORED
        logits = network.logits(states[wanted])
    return functional.cross_entropy(logits.float(), targets[wanted]), balance


@torch.no_grad()  # type: ignore[untyped-decorator]
def measure(logits_of: Callable[[Tensor], Tensor], batches: list[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """Measure the prediction of held-out answers, each token given the correct ones before it.

    ``held_out_loss`` is in nats a token; ``tokens_right`` is the share of tokens that were the likeliest.
    """
    losses, right = [], []
    for ids, targets in batches:
        with torch.autocast("cpu", torch.bfloat16):
            logits = logits_of(ids).float()
        wanted = targets != IGNORED
        losses.append(functional.cross_entropy(logits[wanted], targets[wanted]).item())
        right.append((logits.argmax(-1) == targets)[wanted].float().mean().item())
    return {"held_out_loss": sum(losses) / len(losses), "tokens_right": sum(right) / len(right)}


def train_and_write(
    out: Path, recipe: Recipe, say: Callable[[str], None], wire_format: WireFormatName = "kimi_k2"
) -> None:
    """Train, and write a model directory, with the log in it; the recipe is the log's first line."""
    out.mkdir(parents=True, exist_ok=True)
    ranks = train_vocabulary(dialog_texts(recipe.texts, recipe.seed, wire_format), phrasing(wire_format), recipe.tokens)
    write_tokenizer(out, ranks=ranks, wire_format=wire_format)
    vocabulary = Vocabulary.from_pretrained(out)
    with (out / "training.jsonl").open("w") as log:

        def write(line: dict[str, Any]) -> None:
            rounded = {key: round(value, 4) if isinstance(value, float) else value for key, value in line.items()}
            log.write(json.dumps(rounded) + "\n")
            log.flush()
            say(json.dumps(rounded))

        write(asdict(recipe))
        network = train(vocabulary, recipe, write)
    weights = {name: weight.to(torch.bfloat16) for name, weight in network.state_dict().items()}
    write_model(out, weights, vocabulary)
