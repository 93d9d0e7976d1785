"""Reads the tools that a rendered prompt declares, by its token ids.

Kimi K2's chat templates put the tools of a request first, before any text of a client. In a request without tools, a
first system message with the name ``tool_declare`` looks the same:

    <|im_system|>tool_declare<|im_middle|>[{"type": "function", "function": {…}}, …]<|im_end|>

Kimi K3's prompts declare them in messages with a type of their own, :mod:`constrained_k2.prompts.xtml.declarations`.
"""

import json
from collections.abc import Sequence
from typing import Any, Protocol

from constrained_k2.errors import InvalidRequest
from constrained_k2.formats.kimi_k2 import MIDDLE, SYSTEM
from constrained_k2.prompts.xtml.declarations import XtmlDeclarations
from constrained_k2.vocabulary.vocabulary import Vocabulary

_ROLE = "tool_declare"


class Declarations(Protocol):
    """Finds and reads the tool declarations in prompts of one vocabulary."""

    def are_in(self, prompt_ids: Sequence[int]) -> bool:
        """True if the prompt declares tools, as JSON or otherwise."""

    def read(self, prompt_ids: Sequence[int]) -> list[Any]:
        """The tools that a prompt declares, in OpenAI's form.

        Raises:
            InvalidRequest: They are not declared as a JSON array; some templates write TypeScript.
        """

    def choice(self, prompt_ids: Sequence[int]) -> str | None:
        """The ``tool_choice`` that the prompt states; None if it does not say."""


def declarations_of(vocabulary: Vocabulary) -> Declarations:
    """The reader of the declarations in prompts of a vocabulary."""
    if vocabulary.format.argument_encoding == "xtml":
        return XtmlDeclarations(vocabulary)
    return TemplateDeclarations(vocabulary)


class TemplateDeclarations:
    """Reads prompts that a chat template renders."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        opening = (vocabulary.special_tokens.get(SYSTEM), vocabulary.special_tokens.get(MIDDLE))
        self._vocabulary = vocabulary
        self._opening = None if None in opening else [opening[0], *vocabulary.encode(_ROLE), opening[1]]

    def are_in(self, prompt_ids: Sequence[int]) -> bool:
        """True if the prompt begins with a declaration."""
        return self._opening is not None and list(prompt_ids[: len(self._opening)]) == self._opening

    def read(self, prompt_ids: Sequence[int]) -> list[Any]:
        """The tools that the prompt declares at its beginning."""
        assert self._opening is not None
        try:
            end = prompt_ids.index(self._vocabulary.format.turn_end)
            tools = json.loads(self._vocabulary.decode(prompt_ids[len(self._opening) : end]))
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"the tools are not declared as JSON: {error}", "prompt") from error
        if not isinstance(tools, list):
            raise InvalidRequest("the tools are not declared as a JSON array", "prompt")
        return tools

    def choice(self, prompt_ids: Sequence[int]) -> None:
        """None: no template writes it."""
