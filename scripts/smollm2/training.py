"""Trains on right dialogs, in steps that can be interrupted."""

import hashlib
import json
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from constrained_k2.vocabulary.vocabulary import Vocabulary
from scripts.small_model.sequences import Sequences
from scripts.smollm2.adapter import save_adapter
from scripts.smollm2.dialogs import Author
from scripts.smollm2.questions import Questions

_KEPT = 10  # steps between two saved states


@dataclass(frozen=True, slots=True)
class Recipe:
    """The numbers that the trained weights depend on; the versions of their data are in ``scripts/data.json``."""

    steps: int = 150
    dialogs: int = 8  # of a step
    longest: int = 640  # tokens of a dialog; longer ones are left out
    rate: float = 1e-3  # of AdamW; it falls linearly to a twentieth
    warm_up: int = 20  # steps in which the rate rises to it
    seed: int = 0


HEAD_RECIPE = Recipe(steps=150, seed=1)
"""The recipe of the EAGLE-3 head; its seed draws other dialogs than the adapter was trained on."""


class Written:
    """The dialogs of a recipe as ids, in order, and a digest of those read so far."""

    def __init__(self, questions: Questions, vocabulary: Vocabulary, recipe: Recipe) -> None:
        self._sequences = Sequences(vocabulary)
        self._dialogs = iter(Author(questions, recipe.seed))
        self._longest = recipe.longest
        self._digest = hashlib.sha256()

    def __iter__(self) -> Iterator[tuple[list[int], list[bool]]]:
        for dialog in self._dialogs:
            ids, written = self._sequences.of(dialog)
            if len(ids) <= self._longest:
                self._digest.update(array("i", ids).tobytes())
                yield ids, written

    @property
    def digest(self) -> str:
        """Sha256 of all ids, as 32-bit integers."""
        return self._digest.hexdigest()


def train(  # noqa: PLR0913, PLR0917 - what is trained, on what, how and where
    trained: dict[str, nn.Parameter],
    loss_of: Callable[[Sequence[int], Sequence[bool]], Tensor],
    written: Written,
    recipe: Recipe,
    out: Path,
    say: Callable[[str], None] = print,
) -> None:
    """Train to the recipe's last step, from a saved state beside ``out`` if there is one, and write the file ``out``.

    ``loss_of`` gives the sum of the losses of a dialog's written tokens. Each saved state adds a line to a log beside
    ``out``: its step, and since the line before the mean loss of such a token, the tokens read and the seconds taken.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    state, log = out.with_suffix(".state"), out.with_suffix(".jsonl")
    optimizer = torch.optim.AdamW(trained.values(), lr=recipe.rate, weight_decay=0.0, betas=(0.9, 0.98))
    dialogs = iter(written)
    first = _resume(state, recipe, trained, optimizer)
    for _ in islice(dialogs, first * recipe.dialogs):
        pass
    since, losses, tokens, read = time.monotonic(), 0.0, 0, 0
    for step in range(first + 1, recipe.steps + 1):
        batch = list(islice(dialogs, recipe.dialogs))
        count = sum(sum(flags[1:]) for _, flags in batch)
        for ids, flags in batch:
            loss = loss_of(ids, flags)
            (loss / count).backward()
            losses += loss.item()
        torch.nn.utils.clip_grad_norm_(trained.values(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = _rate(recipe, step)
        optimizer.step()
        optimizer.zero_grad()
        tokens, read = tokens + count, read + sum(len(ids) for ids, _ in batch)
        if step % _KEPT == 0 or step == recipe.steps:
            line = {"step": step, "loss": round(losses / tokens, 4), "tokens": read}
            line["seconds"] = round(time.monotonic() - since)
            with log.open("a") as file:
                file.write(json.dumps(line) + "\n")
            say(f"{line}")
            _save(
                state, {"step": step, "recipe": asdict(recipe), "trained": trained, "optimizer": optimizer.state_dict()}
            )
            since, losses, tokens, read = time.monotonic(), 0.0, 0, 0
    facts = {"recipe": json.dumps(asdict(recipe)), "dialogs_sha256": written.digest}
    save_adapter(out, trained, facts)


def _rate(recipe: Recipe, step: int) -> float:
    rising = min(1.0, step / recipe.warm_up)
    return recipe.rate * rising * max(0.05, 1 - step / recipe.steps)


def _resume(path: Path, recipe: Recipe, trained: dict[str, Any], optimizer: torch.optim.Optimizer) -> int:
    """Read a saved state into the parameters and the optimizer; return its step, 0 without one."""
    if not path.exists():
        return 0
    found = torch.load(path, weights_only=True)
    if found["recipe"] != asdict(recipe):
        raise ValueError(f"{path} is of another recipe, {found['recipe']}: remove it")
    with torch.no_grad():
        for name, weight in trained.items():
            weight.copy_(found["trained"][name])
    optimizer.load_state_dict(found["optimizer"])
    step: int = found["step"]
    return step


def _save(path: Path, state: dict[str, Any]) -> None:
    part = path.with_suffix(".part")
    torch.save(state, part)
    part.replace(path)
