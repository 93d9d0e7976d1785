"""Reads the tools that a prompt of Kimi K3 declares, by its token ids.

The encoder declares tools in messages of their own, at the beginning and, for tools of system messages, in the dialog:

    <|open|>message role="system" type="tool-declare"<|sep|># Tools … ```json […]```<|close|>message<|sep|>

No client can forge one: the text of a client is never encoded as the special tokens of a tag, and in an attribute its
quotes are escaped.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from constrained_k2.errors import InvalidRequest
from constrained_k2.formats.kimi_k3 import MESSAGE
from constrained_k2.vocabulary.vocabulary import Vocabulary

_CODE, _CODE_END = "```json\n", "\n```"
_CHOICE = re.compile(r"`tool_choice=(required|none)`")


class XtmlDeclarations:
    """Finds and reads the encoder's own messages in prompts of one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def are_in(self, prompt_ids: Sequence[int]) -> bool:
        """True if the prompt has a message that declares tools."""
        return next(self._messages(prompt_ids, "tool-declare"), None) is not None

    def read(self, prompt_ids: Sequence[int]) -> list[Any]:
        """The tools of all declarations, in the prompt's order."""
        tools: list[Any] = []
        for text in self._messages(prompt_ids, "tool-declare"):
            _, begin, code = text.partition(_CODE)
            try:
                declared = json.loads(code.removesuffix(_CODE_END)) if begin else None
            except (ValueError, RecursionError) as error:
                raise InvalidRequest(f"the tools are not declared as JSON: {error}", "prompt") from error
            if not isinstance(declared, list):
                raise InvalidRequest("the tools are not declared as a JSON array", "prompt")
            tools += declared
        return tools

    def choice(self, prompt_ids: Sequence[int]) -> str | None:
        """The choice that the prompt states: ``required`` or ``none``. Other choices have no message."""
        stated = [_CHOICE.search(text) for text in self._messages(prompt_ids, "tool-choice")]
        return stated[-1][1] if stated and stated[-1] is not None else None

    def _messages(self, ids: Sequence[int], kind: str) -> Iterator[str]:
        """The texts of the encoder's own messages of a type."""
        markers = self._vocabulary.format
        header = f'{MESSAGE} role="system" type="{kind}"'.encode()
        at = 0
        try:
            while True:
                at = ids.index(markers.call_begin, at) + 1
                begin = self._end_of(header, ids, at)
                if begin is not None and ids[begin] == markers.argument_begin:
                    at = ids.index(markers.call_end, begin)
                    yield self._vocabulary.decode(ids[begin + 1 : at])
        except (ValueError, IndexError):  # no further tag, or the prompt ends within one
            return

    def _end_of(self, text: bytes, ids: Sequence[int], at: int) -> int | None:
        """The index after a text, in any tokenization; None if the tokens spell another text."""
        while text:
            raw = self._vocabulary.ordinary_bytes(ids[at])
            if not raw or not text.startswith(raw):
                return None
            text, at = text[len(raw) :], at + 1
        return at
