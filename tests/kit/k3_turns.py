"""Kimi K3's tokenizers, requests with arguments of any keys and values, and a reader of whole turns."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema

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


# A turn as a text: a character for each byte, and one above them for each special token.
_MARKS = {OPEN: "\u0100", CLOSE: "\u0101", SEP: "\u0102", END: "\u0103"}
_TEXT, _ATTRIBUTE = r"([\0-\xff]*)", r'"([\0-!#-\xff]*)"'


def read(ids: list[int], vocabulary: Vocabulary, *, in_reasoning: bool) -> Turn:
    """Read a whole turn by the rules of the format, written here again; an AssertionError if it breaks one."""
    special = map(vocabulary.special_text, ids)
    raw = (vocabulary.token_bytes(token).decode("latin-1") for token in ids)
    written = "".join(
        text if mark is None else _MARKS.get(mark, "\u0104") for mark, text in zip(special, raw, strict=True)
    )
    at = 0

    def take(shape: str) -> tuple[str, ...]:
        nonlocal at
        for mark, character in _MARKS.items():
            shape = shape.replace(mark, character)
        found = re.compile(shape).match(written, at)
        assert found, (shape, written[at:])
        at = found.end()
        return found.groups()

    turn = Turn()
    if in_reasoning:
        turn.reasoning = _raw(*take(f"{_TEXT}<|close|>think<|sep|><|open|>response<|sep|>"))
    turn.text = _raw(*take(f"{_TEXT}<|close|>response<|sep|>"))
    if written.startswith(_MARKS[OPEN], at):
        take("<|open|>tools<|sep|>")
        while not turn.calls or written.startswith(_MARKS[OPEN], at):
            name, index = take(f'<|open|>call tool={_ATTRIBUTE} index="(0|[1-9][0-9]*)"<|sep|>')
            arguments = []
            while written.startswith(_MARKS[OPEN], at):
                head = f"<|open|>argument key={_ATTRIBUTE} type={_ATTRIBUTE}<|sep|>"
                key, kind, value = take(f"{head}{_TEXT}<|close|>argument<|sep|>")
                arguments.append((_value(key), kind, _raw(value)))
            take("<|close|>call<|sep|>")
            turn.calls.append((_value(name), int(index), arguments))
        take("<|close|>tools<|sep|>")
    take("<|close|>message<|sep|><|end_of_msg|>")
    assert at == len(written)
    return turn


def _raw(text: str) -> bytes:
    return text.encode("latin-1")


def _value(attribute: str) -> str:
    return _raw(attribute).decode().replace("&quot;", '"').replace("&amp;", "&")


def read_valid(
    ids: list[int], vocabulary: Vocabulary, tools: list[dict[str, Any]], *, in_reasoning: bool = True
) -> Turn:
    """Read a whole turn whose calls are valid for their tools and numbered from one."""
    turn = read(ids[: ids.index(vocabulary.format.turn_end) + 1], vocabulary, in_reasoning=in_reasoning)
    schemas = {each["function"]["name"]: each["function"]["parameters"] for each in tools}
    for number, (name, index, arguments) in enumerate(turn.calls, 1):
        values = {key: raw.decode() if kind == "string" else json.loads(raw) for key, kind, raw in arguments}
        assert index == number and len(values) == len(arguments)
        jsonschema.validate(values, schemas[name])
    return turn
