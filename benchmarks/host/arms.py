"""The arms: our split matcher, and the engines' builtin grammars of a whole turn as servers use them."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from os import cpu_count
from typing import Any

import llguidance
import numpy as np
import numpy.typing as npt
import xgrammar

from constrained_k2.compiler.compiler import Compiler
from constrained_k2.engines.llguidance.mask_threads import MaskThreads
from constrained_k2.engines.llguidance.tokenizer import build_tokenizer
from constrained_k2.errors import ConstrainedK2Error
from constrained_k2.grammar.whole_turn.lark import write_lark
from constrained_k2.request.spec import ToolCallSpec
from constrained_k2.schema.undeclared_keys import UndeclaredKeys
from constrained_k2.turn.matcher import ToolCallMatcher
from constrained_k2.turn.pipeline import fill_bitmasks
from constrained_k2.vocabulary.bitmask import bitmask_rows
from constrained_k2.vocabulary.vocabulary import Vocabulary

Bits = npt.NDArray[np.int32]
Tools = list[dict[str, Any]]

OURS, XGRAMMAR, LLGUIDANCE = "ours", "xgrammar's tag", "LLGuidance's grammar"
NAMES = (OURS, XGRAMMAR, LLGUIDANCE)
_XGRAMMAR_CACHE_BYTES = 512 << 20  # VLLM_XGRAMMAR_CACHE_MB's default
_ROLLED_BACK = 8  # tokens at most


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to constrain. Measurements treat compiled requests and matchers as opaque."""

    name: str  # its row in the tables
    forget: Callable[[], object]  # clears the cache of compiled grammars
    takes: Callable[[dict[str, Any]], bool]  # true if the arm can compile a tool
    compile: Callable[[Any], Any]  # compiles a request: all before its first mask but the matcher
    matcher: Callable[[Any], Any]  # returns a matcher at the start of the turn that can roll back tokens
    fill: Callable[[Any, Bits, int], object]  # fills one row
    fill_batch: Callable[[Sequence[Any], Bits], object]  # fills row `i` for the `i`-th matcher, as fast as it can
    accept: Callable[[Any, int], bool]  # accepts a token; False if it is not allowed
    rollback: Callable[[Any, int], object]  # rolls back tokens
    fork: Callable[[Any], Any]  # returns an independent copy of a matcher
    request: Callable[[Tools], Any] = field(default=lambda tools: tools)  # what the engine's process receives


def ours(vocabulary: Vocabulary, undeclared_keys: UndeclaredKeys = "forbid") -> Arm:
    """Return our arm, as a logits processor uses it: it reads the spec's JSON and compiles schemas on first call."""
    compiler = Compiler(vocabulary, undeclared_keys=undeclared_keys)

    def takes(tool: dict[str, Any]) -> bool:
        try:
            compiler.compile(ToolCallSpec.from_openai({"tools": [tool]}))
        except ConstrainedK2Error:
            return False
        return True

    def fill_batch(matchers: Sequence[ToolCallMatcher], bitmask: Bits) -> None:
        failed = fill_bitmasks(matchers, bitmask, range(len(matchers)))
        assert not failed

    return Arm(
        OURS,
        forget=compiler.forget,
        takes=takes,
        compile=lambda request: compiler.compile(ToolCallSpec.from_json(request), check=False),
        matcher=lambda compiled: compiled.matcher(),
        fill=ToolCallMatcher.fill_bitmask,
        fill_batch=fill_batch,
        accept=lambda matcher, token_id: matcher.accept_tokens((token_id,)),
        rollback=ToolCallMatcher.rollback,
        fork=ToolCallMatcher.fork,
        request=lambda tools: ToolCallSpec.from_openai({"tools": tools}).to_json(),
    )


def xgrammar_vocabulary(vocabulary: Vocabulary) -> xgrammar.TokenizerInfo:
    """Return the vocabulary as ``TokenizerInfo.from_huggingface`` makes it: special tokens are plain text to it."""
    return xgrammar.TokenizerInfo(
        [vocabulary.token_bytes(token_id) for token_id in range(vocabulary.size)],
        xgrammar.VocabType.RAW,
        vocab_size=vocabulary.size,
        stop_token_ids=[vocabulary.format.turn_end],
    )


def xgrammar_tag(vocabulary: Vocabulary) -> Arm:
    """Return xgrammar's ``kimi`` structural tag, compiled and matched as vLLM 0.32 does it.

    Eight threads compile, every tool is strict (otherwise vLLM does not constrain the arguments), reasoning is not in
    the tag. See ``tool_parsers/structural_tag_registry.py`` and ``v1/structured_output/backend_xgrammar.py`` in vLLM.
    """
    stops = [vocabulary.format.turn_end]
    compiler = xgrammar.GrammarCompiler(
        xgrammar_vocabulary(vocabulary), max_threads=8, cache_enabled=True, cache_limit_bytes=_XGRAMMAR_CACHE_BYTES
    )
    pool = ThreadPoolExecutor(max(1, min((cpu_count() or 1) // 2, 8)))

    def tag(tools: Tools) -> str:
        strict: list[Any] = [{"type": "function", "function": tool["function"] | {"strict": True}} for tool in tools]
        made = xgrammar.get_model_structural_tag(model="kimi", tools=strict, tool_choice="auto", reasoning=False)
        text: str = made.model_dump_json()
        return text

    def takes(tool: dict[str, Any]) -> bool:
        try:
            xgrammar.Grammar.from_structural_tag(tag([tool]))
        except Exception:  # noqa: BLE001 - any error means no
            return False
        return True

    def fill_some(matchers: Sequence[xgrammar.GrammarMatcher], bitmask: Bits, first: int) -> None:
        for row, matcher in enumerate(matchers, first):
            matcher.fill_next_token_bitmask(bitmask, row)

    def fill_batch(matchers: Sequence[xgrammar.GrammarMatcher], bitmask: Bits) -> None:
        # As vLLM's StructuredOutputManager: more than 128 rows go to threads, sixteen at a time.
        if len(matchers) <= 128:
            fill_some(matchers, bitmask, 0)
            return
        starts = range(0, len(matchers), 16)
        for done in [pool.submit(fill_some, matchers[start : start + 16], bitmask, start) for start in starts]:
            done.result()

    return Arm(
        XGRAMMAR,
        forget=compiler.clear_cache,
        takes=takes,
        compile=lambda tools: compiler.compile_structural_tag(tag(tools)),
        matcher=lambda compiled: xgrammar.GrammarMatcher(
            compiled, override_stop_tokens=stops, max_rollback_tokens=_ROLLED_BACK
        ),
        fill=lambda matcher, bitmask, row: matcher.fill_next_token_bitmask(bitmask, row),
        fill_batch=fill_batch,
        accept=lambda matcher, token_id: bool(matcher.accept_token(token_id)),
        rollback=lambda matcher, count: matcher.rollback(count),
        fork=lambda matcher: matcher.fork(),
    )


def llguidance_grammar(vocabulary: Vocabulary) -> Arm:
    """Return one Lark grammar of the turn, with the arguments by LLGuidance's builtin JSON Schema converter."""
    tokenizer, threads = build_tokenizer(vocabulary, vocabulary.format.turn_end), MaskThreads(None)
    compiled: dict[str, Any] = {}  # LLGuidance has no cache; a server would cache recent grammars

    def make(tools: Tools) -> llguidance.LLMatcher:
        spec = ToolCallSpec.from_openai({"tools": tools})
        text = write_lark(spec, {tool.name: f"%json {json.dumps(tool.parameters)}" for tool in spec.tools})
        return llguidance.LLMatcher(tokenizer, text, log_level=0)

    def compile_tools(tools: Tools) -> Any:
        key = json.dumps(tools)
        if key not in compiled:
            compiled[key] = made = make(tools)
            if made.is_error():
                raise ValueError(made.get_error())
        return compiled[key]

    def fill(matcher: Any, bitmask: Bits, row: int) -> None:
        rows = bitmask_rows(bitmask, vocabulary.size)
        matcher.unsafe_compute_mask_ptr(rows.address + row * rows.row_bytes, rows.row_bytes)

    def fill_batch(matchers: Sequence[Any], bitmask: Bits) -> None:
        rows, batch = bitmask_rows(bitmask, vocabulary.size), [(matcher, row) for row, matcher in enumerate(matchers)]
        threads.executor().unsafe_compute_mask_ptr(batch, rows.address, rows.row_bytes, len(rows))

    return Arm(
        LLGUIDANCE,
        forget=compiled.clear,
        takes=lambda tool: not make([tool]).is_error(),
        compile=compile_tools,
        matcher=lambda compiled: compiled.deep_copy(),
        fill=fill,
        fill_batch=fill_batch,
        accept=lambda matcher, token_id: bool(matcher.try_consume_tokens([token_id])),
        rollback=lambda matcher, count: matcher.rollback(count),
        fork=lambda matcher: matcher.deep_copy(),
    )
