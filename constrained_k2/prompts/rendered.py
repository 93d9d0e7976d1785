"""The result of rendering a request: the prompt's text and token ids, and the repairs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from constrained_k2.prompts.text_repairs import Repair


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A rendered prompt."""

    text: str  # special tokens spelled out
    ids: tuple[int, ...]  # as a server tokenizes it; with a chat template each spelling of a special token becomes one
    repairs: tuple[Repair, ...]  # the changes made to the request, in order
    body: Mapping[str, Any]  # the repaired request
    plain_spans: tuple[tuple[int, int], ...] = ()  # parts of ``text`` in which ordinary tokens spell a special one
