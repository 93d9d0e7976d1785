"""Turns with one forbidden token, as texts: what the model wrote, and what it wanted next."""

from typing import Any

from constrained_k2 import KIMI_K2, Compiler, ToolCallSpec, Vocabulary
from constrained_k2.explain.limits import ExplainLimits
from constrained_k2.explain.overrides import find_places
from constrained_k2.explain.view import Site
from constrained_k2.formats.base import WireFormat
from constrained_k2.prompts.special_text import SpecialTexts
from constrained_k2.vocabulary.vocabulary import _ByteEncoder
from tests.kit.tools import tool as named_tool

_COMPILERS: dict[WireFormat, Compiler] = {}


def byte_compiler(wire_format: WireFormat = KIMI_K2, **how: Any) -> Compiler:
    """The compiler over the bytes of a format."""
    if how:
        return Compiler(Vocabulary.of_bytes(wire_format), mask_cache_bytes=0, **how)
    if wire_format not in _COMPILERS:
        _COMPILERS[wire_format] = Compiler(Vocabulary.of_bytes(wire_format), mask_cache_bytes=0)
    return _COMPILERS[wire_format]


def vocabulary_with(wire_format: WireFormat, *pieces: str | bytes) -> Vocabulary:
    """All bytes, these pieces, and the format's special tokens, with ids that differ from those over bytes."""
    tokens = {byte: bytes((byte,)) for byte in range(256)}
    known = {*tokens.values()}
    for piece in pieces:
        raw = piece.encode() if isinstance(piece, str) else piece
        if raw not in known:
            known.add(raw)
            tokens[len(tokens)] = raw
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
    wanted: str | bytes,
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
    special = vocabulary.special_tokens.get(wanted) if isinstance(wanted, str) else None
    raw = wanted.encode() if isinstance(wanted, str) else wanted
    token = vocabulary.find(raw) if special is None else special
    assert token is not None
    ids = ids_of(written, vocabulary)
    turn = Compiler(vocabulary, mask_cache_bytes=0).compile(spec).matcher(in_reasoning=in_reasoning)
    assert turn.accept_tokens(ids), "the mask forbids the text itself"
    assert turn.accept_tokens([token]) is is_legal, "the mask allows the token"
    how: dict[str, Any] = {"in_reasoning": in_reasoning, "limits": limits or ExplainLimits(seconds=30.0)}
    return find_places(compiled, vocabulary, [*ids, 0], {len(ids): token}, **how)[len(ids)]
