"""Kimi K3's turns for tests: vocabularies, arguments of any keys and values, a reader of its own, and random walks."""

import json
import random
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from constrained_k2 import CompiledToolCalls, Compiler, ToolCallMatcher, ToolCallSpec, Vocabulary
from constrained_k2.engines.llguidance.engine import LLGuidanceEngine, LLGuidanceGrammar
from constrained_k2.engines.llguidance.grammar_text import GrammarText
from constrained_k2.formats.kimi_k3 import SPECIAL_TOKENS
from constrained_k2.schema.coverage import Coverage
from constrained_k2.vocabulary.bitmask import TokenSet, allocate_bitmask, allowed_ids

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


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


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


def ids_of(vocabulary: Vocabulary, text: str) -> list[int]:
    """The tokens of a text in which markers stand for themselves; the text between two of them is encoded at once."""
    ids: list[int] = []
    for part in re.split(rf"({'|'.join(map(re.escape, (OPEN, CLOSE, SEP, END)))})", text):
        known = vocabulary.special_tokens.get(part)
        ids += vocabulary.encode(part) if known is None else [known]
    return ids


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


def walk(matcher: ToolCallMatcher, vocabulary: Vocabulary, seed: int, limit: int = 3000) -> list[int]:
    """Take allowed tokens at random until a stop, going back now and then; masks stay as they were."""
    chance = random.Random(seed)
    row = allocate_bitmask(1, vocabulary.size)
    special = allocate_bitmask(1, vocabulary.size)[0]
    TokenSet(vocabulary.special_tokens.values(), vocabulary.size).fill(special)
    ids: list[int] = []
    masks: list[bytes] = []
    while not matcher.is_terminated():
        assert len(ids) < limit, vocabulary.decode(ids[-100:])
        matcher.fill_bitmask(row, 0)
        assert row.any(), f"nothing is allowed after {vocabulary.decode(ids)!r}"
        masks.append(row.tobytes())
        marked = row[0] & special
        allowed = allowed_ids(marked if marked.any() and chance.random() < 0.2 else row[0])
        token = int(allowed[chance.randrange(len(allowed))])
        assert matcher.accept_tokens([token]), f"{token} is in the mask but is refused"
        ids.append(token)
        if chance.random() < 0.05:
            back = chance.randint(1, min(len(ids), 12))
            matcher.rollback(back)
            matcher.fill_bitmask(row, 0)
            assert row.tobytes() == masks[-back], f"another mask after {vocabulary.decode(ids[:-back])!r}"
            again = ids[-back:]
            assert matcher.validate_tokens([*again, -1]) == again
            assert matcher.accept_tokens(again)
    return ids
