"""Turns with one forbidden token, as texts: what the model wrote, and what it wanted next."""

from functools import cache
from typing import Any

from constrained_k2 import KIMI_K2, Compiler, ToolCallSpec, Vocabulary
from constrained_k2.explain.overrides import find_places
from constrained_k2.explain.subject import ExplainLimits
from constrained_k2.explain.view import Site
from constrained_k2.formats.base import WireFormat
from constrained_k2.prompts.special_text import SpecialTexts
from constrained_k2.vocabulary.vocabulary import _ByteEncoder
from tests.kit.tools import tool as named_tool

SECTION = "<|tool_calls_section_begin|><|tool_call_begin|>"
CALL = f"{SECTION}functions.act:0<|tool_call_argument_begin|>"
END = "<|tool_call_end|>"
TOOLS = "<|close|>response<|sep|><|open|>tools<|sep|>"
K3_CALL = f'{TOOLS}<|open|>call tool="act" index="1"<|sep|>'

UNITS = {"enum": ["celsius", "fahrenheit"]}


def obj(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties} | ({} if required is None else {"required": required})


@cache
def byte_compiler(wire_format: WireFormat = KIMI_K2) -> Compiler:
    return Compiler(Vocabulary.of_bytes(wire_format), mask_cache_bytes=0)


def vocabulary_with(wire_format: WireFormat, piece: str = "") -> Vocabulary:
    """All bytes, a piece, and the format's special tokens, with ids that differ from those over bytes."""
    tokens = {byte: bytes((byte,)) for byte in range(256)}
    if len(piece.encode()) > 1:
        tokens[256] = piece.encode()
    texts = sorted(wire_format.special_texts)
    return Vocabulary(tokens, {text: 600 + number for number, text in enumerate(texts)}, 800, _ByteEncoder())


def tool(schema: dict[str, Any], name: str = "act", **fields: Any) -> dict[str, Any]:
    return named_tool(name, schema, **fields)


def ids_of(text: str, vocabulary: Vocabulary) -> list[int]:
    """A text as tokens: the texts of special tokens are those tokens."""
    return SpecialTexts(vocabulary.special_tokens).encode(text, vocabulary)


def place_of(
    body: dict[str, Any],
    written: str,
    wanted: str,
    wire_format: WireFormat = KIMI_K2,
    *,
    in_reasoning: bool = False,
    limits: ExplainLimits | None = None,
    is_legal: bool = False,
) -> Site:
    """The place of one token that is forbidden after a text, which is checked to be so."""
    vocabulary = vocabulary_with(wire_format, wanted)
    spec = ToolCallSpec.from_openai(body)
    compiled = byte_compiler(wire_format).compile(spec)
    token = vocabulary.special_tokens.get(wanted, vocabulary.find(wanted.encode()))
    assert token is not None
    ids = ids_of(written, vocabulary)
    turn = Compiler(vocabulary, mask_cache_bytes=0).compile(spec).matcher(in_reasoning=in_reasoning)
    assert turn.accept_tokens(ids), "the mask forbids the text itself"
    assert turn.accept_tokens([token]) is is_legal, "the mask allows the token"
    how: dict[str, Any] = {
        "in_reasoning": in_reasoning,
        "limits": limits or ExplainLimits(seconds=30.0, compile_seconds=30.0),
    }
    return find_places(compiled, vocabulary, [*ids, 0], {len(ids): token}, **how)[len(ids)]
