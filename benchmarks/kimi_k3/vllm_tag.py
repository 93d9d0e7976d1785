"""vLLM's structural tag for Kimi K3, compiled and matched as vLLM 0.32 does it, and vLLM's parser."""

import json
from types import SimpleNamespace
from typing import Any

import xgrammar

from benchmarks.baselines.whole_turn import XGrammarTag
from benchmarks.kimi_k3.walker import Row
from constrained_k2.vocabulary.vocabulary import Vocabulary

_ROLLBACK = 64


class VllmTag(XGrammarTag):
    """The tag ``kimi_k3`` of vLLM's own registry; special tokens are plain text to it.

    Every tool is strict: otherwise vLLM does not constrain the arguments.
    """

    def begin(self, tool: dict[str, Any]) -> "VllmTurn":
        """Return a turn that must call this tool.

        Raises:
            RuntimeError: xgrammar rejects the tag.
        """
        return VllmTurn(self.matcher(self.compile([tool]), drafts=_ROLLBACK))

    def _tag(self, tools: Any) -> str:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionToolsParam
        from vllm.tool_parsers.structural_tag_registry import get_model_structural_tag

        strict = [
            ChatCompletionToolsParam.model_validate(
                {"type": "function", "function": tool["function"] | {"strict": True}}
            )
            for tool in tools
        ]
        tag = get_model_structural_tag("kimi_k3", strict, "required", reasoning=False)
        assert tag is not None
        text: str = tag.model_dump_json()
        return text


class VllmTurn:
    """A turn under the tag."""

    def __init__(self, matcher: xgrammar.GrammarMatcher) -> None:
        self._matcher = matcher

    def fill(self, bitmask: Row) -> None:
        """See :class:`benchmarks.kimi_k3.walker.Turn`."""
        self._matcher.fill_next_token_bitmask(bitmask, 0)

    def accept(self, token_id: int) -> bool:
        """See :class:`benchmarks.kimi_k3.walker.Turn`."""
        return bool(self._matcher.accept_token(token_id))

    def rollback(self, count: int) -> None:
        """See :class:`benchmarks.kimi_k3.walker.Turn`."""
        self._matcher.rollback(count)


def vllm_arguments(ids: list[int], vocabulary: Vocabulary) -> list[Any]:
    """Return the arguments of the calls that vLLM's parser reads from the text of a turn."""
    from vllm.tool_parsers.kimi_k3_tool_parser import KimiK3ToolParser

    tokenizer: Any = SimpleNamespace(get_vocab=lambda: vocabulary.special_tokens)
    read = KimiK3ToolParser(tokenizer).extract_tool_calls(vocabulary.decode(ids), None)
    return [json.loads(call.function.arguments) for call in read.tool_calls]
