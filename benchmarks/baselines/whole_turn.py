"""The engines' builtin grammars of a whole turn, as servers use them."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count
from typing import Any

import llguidance
import numpy as np
import numpy.typing as npt
import xgrammar

from constrained_k2.engines.llguidance.mask_threads import MaskThreads
from constrained_k2.engines.llguidance.tokenizer import build_tokenizer
from constrained_k2.grammar.whole_turn.lark import write_lark
from constrained_k2.request.spec import ToolCallSpec
from constrained_k2.vocabulary.bitmask import BitmaskRows
from constrained_k2.vocabulary.vocabulary import Vocabulary

_XGRAMMAR_CACHE_BYTES = 512 << 20  # VLLM_XGRAMMAR_CACHE_MB's default


class XGrammarTag:
    """xgrammar's ``kimi`` structural tag, compiled and matched as vLLM 0.32 does it.

    That is: special tokens are plain text to it (``TokenizerInfo.from_huggingface`` of Kimi's tokenizer; a test
    compares), eight threads compile, every tool is strict (otherwise vLLM does not constrain the arguments), reasoning
    is not in the tag. See ``tool_parsers/structural_tag_registry.py`` and ``v1/structured_output/backend_xgrammar.py``
    in vLLM.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.info = xgrammar.TokenizerInfo(
            [vocabulary.token_bytes(token_id) for token_id in range(vocabulary.size)],
            xgrammar.VocabType.RAW,
            vocab_size=vocabulary.size,
            stop_token_ids=[vocabulary.format.turn_end],
        )
        self._stops = [vocabulary.format.turn_end]
        self._compiler = xgrammar.GrammarCompiler(
            self.info, max_threads=8, cache_enabled=True, cache_limit_bytes=_XGRAMMAR_CACHE_BYTES
        )
        # As vLLM's StructuredOutputManager: more than 128 rows go to threads, sixteen at a time.
        self._pool = ThreadPoolExecutor(max(1, min((cpu_count() or 1) // 2, 8)))

    def forget(self) -> None:
        """Empty its cache."""
        self._compiler.clear_cache()

    def takes(self, tool: dict[str, Any]) -> bool:
        """True if it has a grammar for a tool; nothing is compiled."""
        try:
            xgrammar.Grammar.from_structural_tag(self._tag([tool]))
        except Exception:  # noqa: BLE001 - any error means no
            return False
        return True

    def compile(self, tools: Sequence[dict[str, Any]]) -> xgrammar.CompiledGrammar:
        """Compile the tag of a request's OpenAI tools.

        Raises:
            RuntimeError: xgrammar rejects it.
        """
        return self._compiler.compile_structural_tag(self._tag(tools))

    def _tag(self, tools: Sequence[dict[str, Any]]) -> str:
        strict: list[Any] = [{"type": "function", "function": tool["function"] | {"strict": True}} for tool in tools]
        tag = xgrammar.get_model_structural_tag(model="kimi", tools=strict, tool_choice="auto", reasoning=False)
        text: str = tag.model_dump_json()
        return text

    def matcher(self, compiled: xgrammar.CompiledGrammar, drafts: int = 0) -> xgrammar.GrammarMatcher:
        """Return a matcher at the start of the turn that can roll back ``drafts`` tokens."""
        return xgrammar.GrammarMatcher(compiled, override_stop_tokens=self._stops, max_rollback_tokens=drafts)

    def fill_batch(self, batch: Sequence[tuple[xgrammar.GrammarMatcher, int]], bitmask: npt.NDArray[np.int32]) -> None:
        """Fill rows as vLLM does."""
        if len(batch) <= 128:
            _fill_one_by_one(batch, bitmask)
            return
        parts = [batch[start : start + 16] for start in range(0, len(batch), 16)]
        for done in [self._pool.submit(_fill_one_by_one, part, bitmask) for part in parts]:
            done.result()


def _fill_one_by_one(batch: Sequence[tuple[xgrammar.GrammarMatcher, int]], bitmask: npt.NDArray[np.int32]) -> None:
    for matcher, row in batch:
        matcher.fill_next_token_bitmask(bitmask, row)


class LLGuidanceWhole:
    """One Lark grammar of the turn, with the arguments by LLGuidance's builtin JSON Schema converter."""

    def __init__(self, vocabulary: Vocabulary, threads: int | None = None) -> None:
        self._tokenizer = build_tokenizer(vocabulary, vocabulary.format.turn_end)
        self._threads = MaskThreads(threads)

    def compile(self, tools: Sequence[dict[str, Any]]) -> llguidance.LLMatcher:
        """Return a matcher to copy.

        Raises:
            ValueError: LLGuidance rejects the grammar.
        """
        spec = ToolCallSpec.from_openai({"tools": list(tools)})
        text = write_lark(spec, {tool.name: f"%json {json.dumps(tool.parameters)}" for tool in spec.tools})
        matcher = llguidance.LLMatcher(self._tokenizer, text, log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def fill_batch(self, batch: Sequence[tuple[llguidance.LLMatcher, int]], rows: BitmaskRows) -> None:
        """Fill rows with LLGuidance's executor."""
        self._threads.executor().unsafe_compute_mask_ptr(list(batch), rows.address, rows.row_bytes, len(rows))
