"""Renders dialogs as a server of the small model does, and flags the tokens that the assistant writes."""

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from constrained_k2.prompts.prompt import PromptRenderer, Renderer
from constrained_k2.prompts.rendered import RenderedPrompt
from constrained_k2.prompts.xtml import XtmlRenderer
from constrained_k2.vocabulary.vocabulary import Vocabulary
from scripts.small_model.shipped import SMALL_MODELS

IGNORED = -100
"""Target of a position whose next token is not the assistant's."""

_SORTED_TOGETHER = 32


class DialogRenderer:
    """Renders dialogs as a server of the small model does; the vocabulary tells the wire format."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._is_xtml = vocabulary.format.argument_encoding == "xtml"
        template = (files("constrained_k2.testing") / "chat_template.jinja").read_text("utf-8")
        self._renderer: Renderer = (
            XtmlRenderer(vocabulary) if self._is_xtml else PromptRenderer.from_template(template, vocabulary)
        )
        self._fields = SMALL_MODELS["kimi_k3" if self._is_xtml else "kimi_k2"].fields

    def render(self, dialog: Mapping[str, Any], *, opens_answer: bool = False) -> RenderedPrompt:
        """Render a dialog, with the opening of the assistant's next turn if ``opens_answer``."""
        messages = [_decoded(message) for message in dialog["messages"]] if self._is_xtml else dialog["messages"]
        body = {**dialog, **self._fields, "messages": messages, "add_generation_prompt": opens_answer}
        return self._renderer.render(body, repair=False)


def _decoded(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Decode the arguments of a message's calls: vLLM does so for Kimi K3, whose tokenizer writes them again."""
    calls = [
        {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    return {**message, "tool_calls": calls} if calls else message


class Sequences:
    """Converts dialogs to sequences of the small model's vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._renderer = DialogRenderer(vocabulary)
        self._end = vocabulary.format.turn_end
        greeting = {"messages": [{"role": "user", "content": "Hello!"}]}
        asked, opened = (self._renderer.render(greeting, opens_answer=opens).ids for opens in (False, True))
        self._opening = list(opened[len(asked) :])  # of each of the assistant's turns

    def of(self, dialog: Mapping[str, Any]) -> tuple[list[int], list[bool]]:
        """Return a dialog's ids, and for each whether the assistant writes it, including the end of its turn."""
        ids = list(self._renderer.render(dialog).ids)
        written, speaks, length = [], False, len(self._opening)
        for position, token in enumerate(ids):
            speaks = speaks or ids[max(0, position - length) : position] == self._opening
            written.append(speaks)
            speaks = speaks and token != self._end
        return ids, written

    def batches(self, dialogs: Iterator[Mapping[str, Any]], size: int, longest: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield ids and targets, the next ids or ``IGNORED``, both int64 ``[size, length]``, of similar length.

        Dialogs are read lazily; longer sequences than ``longest`` are left out.
        """
        while True:
            found = [
                pair for dialog in islice(dialogs, _SORTED_TOGETHER) if len((pair := self.of(dialog))[0]) <= longest
            ]
            if len(found) < size:
                raise ValueError(f"{len(found)} of {_SORTED_TOGETHER} dialogs have at most {longest} tokens")
            found.sort(key=lambda pair: len(pair[0]))
            for start in range(0, len(found) - size + 1, size):
                yield _stack(found[start : start + size])


def _stack(pairs: list[tuple[list[int], list[bool]]]) -> tuple[Tensor, Tensor]:
    length = max(len(ids) for ids, _ in pairs)
    inputs = torch.zeros(len(pairs), length, dtype=torch.int64)
    targets = torch.full((len(pairs), length), IGNORED)
    for row, (ids, written) in enumerate(pairs):
        whole = torch.tensor(ids)
        inputs[row, : len(ids)] = whole
        targets[row, : len(ids) - 1] = torch.where(torch.tensor(written[1:]), whole[1:], IGNORED)
    return inputs, targets
