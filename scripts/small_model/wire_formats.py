"""The parts of the small model that depend on its wire format: special tokens, prompts, and the directories."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from constrained_k2.formats import kimi_k2, kimi_k3
from constrained_k2.formats.base import WireFormat
from constrained_k2.prompts.prompt import PromptRenderer, Renderer
from constrained_k2.prompts.rendered import RenderedPrompt
from constrained_k2.prompts.xtml import XtmlRenderer
from constrained_k2.testing.tokenizer import WireFormatName
from constrained_k2.vocabulary.vocabulary import Vocabulary
from scripts.small_model.shipped import SMALL_MODELS, SmallModel


@dataclass(frozen=True, slots=True)
class Surface:
    """The parts of the small model that depend on its wire format."""

    special_tokens: Mapping[int, str]  # offset from the last ordinary token -> text
    phrasing: tuple[str, ...]  # texts whose words have a token with the space before them
    trained: Path  # the vocabulary, the weights and the log of the training
    shipped: SmallModel  # the files that the wheel ships, and the fields of every request

    @property
    def format(self) -> WireFormat:
        """The wire format."""
        return self.shipped.wire_format


_HERE = Path(__file__).parent
_ATTRIBUTES = " role tool index key type"  # of tags; single tokens in Kimi K3's vocabulary too

SURFACES: Mapping[WireFormatName, Surface] = {
    "kimi_k2": Surface(kimi_k2.SPECIAL_TOKENS, (), _HERE / "trained", SMALL_MODELS["kimi_k2"]),
    "kimi_k3": Surface(kimi_k3.SPECIAL_TOKENS, (_ATTRIBUTES,), _HERE / "trained_kimi_k3", SMALL_MODELS["kimi_k3"]),
}


class DialogRenderer:
    """Renders dialogs as a server of the small model does; the vocabulary tells the wire format."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._is_xtml = vocabulary.format.argument_encoding == "xtml"
        self._renderer: Renderer = (
            XtmlRenderer(vocabulary) if self._is_xtml else PromptRenderer.from_template(chat_template(), vocabulary)
        )
        self._fields = SURFACES["kimi_k3" if self._is_xtml else "kimi_k2"].shipped.fields

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


def chat_template() -> str:
    """Return Kimi K2's chat template as the test models have it."""
    return (files("constrained_k2.testing") / "chat_template.jinja").read_text("utf-8")
