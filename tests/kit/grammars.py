"""Grammars of one schema: compiled over the 256 bytes, fed with texts or tokens, their masks, and random texts."""

import json
import random
from collections.abc import Iterable
from typing import Any

import numpy as np

from constrained_k2 import CompiledToolCalls, Compiler, ConstrainedK2Error, ToolCallSpec, Vocabulary
from constrained_k2.engines.llguidance.grammar import LLGuidanceGrammar
from constrained_k2.engines.protocol import ArgumentGrammar, ArgumentMatcher, Engine
from constrained_k2.schema.budget import check_budget
from constrained_k2.vocabulary.bitmask import allocate_bitmask, allowed_ids
from tests.kit.compilers import byte_compiler
from tests.kit.tools import tool


def compiled(schema: Any) -> LLGuidanceGrammar:
    """Return LLGuidance's grammar of a schema, with undeclared keys allowed."""
    grammar = byte_compiler().engine("llguidance").compile(json.dumps(schema))
    assert isinstance(grammar, LLGuidanceGrammar)
    return grammar


def compile_schema(engine: Engine, schema: Any) -> ArgumentGrammar | None:
    """Return the grammar of a schema that may be hostile; None if it is refused."""
    document = json.loads(json.dumps(schema))
    try:
        check_budget(document)
        return engine.compile(json.dumps(document))
    except ConstrainedK2Error:
        return None


def request_of(compiler: Compiler, schema: Any, *, check: bool = True, **fields: Any) -> CompiledToolCalls:
    """Compile a request with the function ``f``; ``fields`` go into ``function``: ``strict``."""
    return compiler.compile(ToolCallSpec.from_openai({"tools": [tool("f", schema, **fields)]}), check=check)


def takes(matcher: ArgumentMatcher, ids: Iterable[int]) -> bool:
    """Return True if a matcher accepts these tokens, and its text is complete behind them."""
    return all(map(matcher.accept, ids)) and matcher.is_complete()


def accepts(grammar: ArgumentGrammar, instance: Any, separators: tuple[str, str] = (",", ":")) -> bool:
    """Return True if a grammar over the 256 bytes accepts an instance as JSON."""
    text = json.dumps(instance, ensure_ascii=False, separators=separators)
    return takes(grammar.matcher("schema"), text.encode())


def mask_of(matcher: ArgumentMatcher, vocabulary: Vocabulary) -> list[int]:
    """Return the tokens of a matcher's mask."""
    row = allocate_bitmask(1, vocabulary.size)[0]
    matcher.fill(row)
    found: list[int] = allowed_ids(row).tolist()
    return found


def takes_masked(matcher: ArgumentMatcher, vocabulary: Vocabulary, ids: Iterable[int]) -> bool:
    """Return True if a text is accepted and complete. Each token is accepted exactly if it is in the mask before it."""
    row = allocate_bitmask(1, vocabulary.size)[0]
    for token in ids:
        matcher.fill(row)
        is_allowed = bool(row[token >> 5] >> (token & 31) & 1)
        assert matcher.accept(token) == is_allowed, f"{token} is {'in' if is_allowed else 'not in'} the mask"
        if not is_allowed:
            return False
    return matcher.is_complete()


def walk(grammar: ArgumentGrammar, seed: int) -> str | None:
    """Return a random text under the mask, biased towards closing what is open; None if it does not end."""
    chance = random.Random(seed)
    vocabulary = byte_compiler().vocabulary
    matcher = grammar.matcher("schema")
    row = allocate_bitmask(1, vocabulary.size)[0]
    end = vocabulary.format.call_end
    closers = np.array([*map(ord, '"]}'), end])
    text = bytearray()
    for _ in range(4000):
        matcher.fill(row)
        ids = allowed_ids(row)
        assert len(ids), bytes(text)
        preferred = ids[np.isin(ids, closers)]
        token = int(chance.choice(preferred if len(preferred) and chance.random() < 0.5 else ids))
        if token == end:
            assert matcher.is_complete()
            return text.decode()
        assert matcher.accept(token), bytes(text)
        text.append(token)
    return None  # did not end within the limit


def text_body(kind: str, text: str) -> dict[str, Any]:
    """Return a request with a client's grammar: the custom tool ``f`` for lark and regex, else a grammar or answer regex."""
    if kind in {"lark", "regex"}:
        form = {"type": "grammar", "syntax": kind, "definition": text}
        return {"tools": [{"type": "custom", "name": "f", "format": form}], "tool_choice": "required"}
    return {"structured_outputs": {kind.removeprefix("answer "): text}}


def text_matcher(compiler: Compiler, kind: str, text: str) -> Any:
    """Return a matcher of a client's grammar: of the custom tool's arguments, or of the answer."""
    made = compiler.compile(ToolCallSpec.from_openai(text_body(kind, text)))
    return made.arguments("f") if kind in {"lark", "regex"} else made.answer()
