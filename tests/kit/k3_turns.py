"""Kimi K3's tokenizers, requests with arguments of any keys and values, and a reader of whole turns."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from constrained_k2 import CompiledToolCalls, Compiler, ToolCallSpec, Vocabulary
from constrained_k2.engines.llguidance.engine import LLGuidanceEngine
from constrained_k2.engines.llguidance.grammar import LLGuidanceGrammar
from constrained_k2.engines.llguidance.grammar_text import GrammarText
from constrained_k2.formats.kimi_k3 import SPECIAL_TOKENS
from constrained_k2.schema.coverage import Coverage
from tests.kit.tools import tool

OPEN, CLOSE, SEP, END = "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"

_ARGUMENTS = r"""%llguidance {"no_forcing": true}
start: argument*
argument: <|open|> HEAD <|sep|> RAW <|close|> "argument" <|sep|>
HEAD: /argument key="[^"]{0,40}" type="(string|number|boolean|null|object|array)"/
RAW: /(?s:.*)/
"""


def as_k3(tokenizer: Path, directory: Path) -> Path:
    """Write a tokenizer of Kimi K3: the ordinary tokens of another one, with its special tokens."""
    model = (tokenizer / "tiktoken.model").read_bytes()
    base = len(model.splitlines())
    names = {str(base + offset): {"content": text, "special": True} for offset, text in SPECIAL_TOKENS.items()}
    (directory / "tiktoken.model").write_bytes(model)
    (directory / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": names}))
    return directory


def compiled(compiler: Compiler, *names: str, **body: Any) -> CompiledToolCalls:
    """Compile a request for these tools, which take any arguments."""
    spec = ToolCallSpec.from_openai({"tools": [tool(name) for name in names], **body} if names else body)
    grammar = compiler.compile(spec, check=False)
    engine = grammar._shared.engine("llguidance")
    assert isinstance(engine, LLGuidanceEngine)
    source = GrammarText(_lark_text(_ARGUMENTS), Coverage("llguidance"), model=None)
    for name in names:
        grammar._grammars[name] = LLGuidanceGrammar(engine.tokenizer, source, engine.mask_threads, engine.mask_cache)
    return grammar


def _lark_text(lark: str) -> str:
    import llguidance

    return str(llguidance.LLMatcher.grammar_from_lark(lark))


@dataclass
class Turn:
    """The content of a turn, as :func:`read` finds it."""

    reasoning: bytes | None = None
    text: bytes = b""
    calls: list[tuple[str, int, list[tuple[str, str, bytes]]]] = field(default_factory=list)


def read(ids: list[int], vocabulary: Vocabulary, *, in_reasoning: bool) -> Turn:
    """Read a whole turn by the rules of the format, written here again; an AssertionError if it breaks one."""
    left: list[str | bytes] = []  # special tokens, and the text between them
    for token_id in ids:
        special = vocabulary.special_text(token_id)
        raw = vocabulary.token_bytes(token_id)
        if special is not None:
            left.append(special)
        elif left and isinstance(left[-1], bytes):
            left[-1] += raw
        else:
            left.append(raw)
    left.reverse()

    def text() -> bytes:
        if left and isinstance(left[-1], bytes):
            found = left.pop()
            assert isinstance(found, bytes)
            return found
        return b""

    def take(*expected: str | bytes) -> None:
        found = [left.pop() for _ in expected]
        assert found == list(expected), (found, expected)

    def attributes(tag: str, *names: str) -> list[str]:
        raw = text().decode()
        match = re.fullmatch(tag + "".join(rf' {name}="([^"]*)"' for name in names), raw)
        assert match, raw
        return [value.replace("&quot;", '"').replace("&amp;", "&") for value in match.groups()]

    turn = Turn()
    if in_reasoning:
        turn.reasoning = text()
        take(CLOSE, b"think", SEP, OPEN, b"response", SEP)
    turn.text = text()
    take(CLOSE, b"response", SEP)
    if left[-2] == b"tools":
        take(OPEN, b"tools", SEP)
        while left[-1] == OPEN:
            take(OPEN)
            name, index = attributes("call", "tool", "index")
            take(SEP)
            arguments = []
            while left[-1] == OPEN:
                take(OPEN)
                key, kind = attributes("argument", "key", "type")
                take(SEP)
                arguments.append((key, kind, text()))
                take(CLOSE, b"argument", SEP)
            take(CLOSE, b"call", SEP)
            assert index == str(int(index))
            turn.calls.append((name, int(index), arguments))
        assert turn.calls
        take(CLOSE, b"tools", SEP)
    take(CLOSE, b"message", SEP, END)
    assert not left
    return turn
