"""Reads the tools that a rendered prompt declares, by its token ids.

Kimi's chat templates put the tools of a request first, before any text of a client, so no message can forge them:

    <|im_system|>tool_declare<|im_middle|>[{"type": "function", "function": {…}}, …]<|im_end|>
"""

import json
from collections.abc import Sequence
from typing import Any

from constrained_k2.errors import InvalidRequest
from constrained_k2.formats.kimi_k2 import MIDDLE, SYSTEM
from constrained_k2.vocabulary.vocabulary import Vocabulary

_ROLE = "tool_declare"


class Declarations:
    """Finds and reads the tool declarations in prompts of one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        opening = (vocabulary.special_tokens.get(SYSTEM), vocabulary.special_tokens.get(MIDDLE))
        self._vocabulary = vocabulary
        self._opening = None if None in opening else [opening[0], *vocabulary.encode(_ROLE), opening[1]]

    def are_in(self, prompt_ids: Sequence[int]) -> bool:
        """True if the prompt declares tools, as JSON or otherwise."""
        return self._opening is not None and list(prompt_ids[: len(self._opening)]) == self._opening

    def read(self, prompt_ids: Sequence[int]) -> list[Any]:
        """The tools that a prompt declares, in OpenAI's form.

        Raises:
            InvalidRequest: They are not declared as a JSON array; some templates write TypeScript.
        """
        assert self._opening is not None
        try:
            end = prompt_ids.index(self._vocabulary.format.turn_end)
            tools = json.loads(self._vocabulary.decode(prompt_ids[len(self._opening) : end]))
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"the tools are not declared as JSON: {error}", "prompt") from error
        if not isinstance(tools, list):
            raise InvalidRequest("the tools are not declared as a JSON array", "prompt")
        return tools
