r"""Property tests of random client grammars (custom tools and answers, Lark and regexes).

    start: "a" b? /[^\n]+/ "\n"        the library lark must accept each text that random choices from masks write; the
    b: "=" | b "=" b                   masks must allow the text in any tokenization; no step may take long

Each number is one example. lark's parser tries all ways to split a text into terminals. So it accepts every text that
the greedy lexer accepts; the reverse does not hold.
"""

import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from lark import Lark
from lark.exceptions import LarkError

from constrained_k2 import SchemaTooCostly, UnsupportedSchema
from constrained_k2.vocabulary.bitmask import TokenSet, allocate_bitmask, allowed_ids
from tests.kit.grammars import text_matcher
from tests.kit.xtml import block, encode
from tests.kit.xtml import decode as decode_blocks
from tests.laws.examples import Fault
from tests.laws.feeding import Bench, Broken, Piece, has

_LETTERS = ("a", "b", "ab", '\\"', "\\\\", "\\n", "é", "日", "-", "=", " ", "END", "x y", "😀")
_CLASSES = ("[abc]", '[^"]', r"[^\n]", r"\w", r"\d", r"\s", ".", "[a-z-]", r"[^\W\d]", "é", "=", '"', r"[ \t]")
_PLAIN = tuple(one for one in _CLASSES if not re.search(r"\\[wdsWD]", one))  # equal in LLGuidance's own dialect
_COUNTS = ("+", "{1,3}", "{2}", "", "")
_OPERATORS = ("?", "*", "+", "", "", "", "")
_OF_LITERALS = (*_OPERATORS, "~2", "~1..3")  # lark takes minutes for counted groups inside counted groups
_STEP_SECONDS = 1.0  # CPU time: far more than any step may take, on any machine
_WALK_TOKENS = 60
_MAX_CHARACTERS = 60  # longer texts take lark too long


class Grammar(NamedTuple):
    """One example: a grammar of a custom tool or of an answer."""

    syntax: str  # lark or regex
    definition: str
    is_answer: bool

    def __str__(self) -> str:
        return f"{'answer' if self.is_answer else 'custom tool'}, {self.syntax}: {self.definition}"


def grammar_of(number: int) -> Grammar:
    """The random grammar with this number."""
    draw = random.Random(f"grammar {number}")
    is_answer = draw.random() < 0.25
    write = _Draw(draw, _PLAIN if is_answer else _CLASSES)
    if draw.random() < 0.2:
        return Grammar("regex", write.regex(3), is_answer)
    rules = [f"{name}: {write.alternatives(2)}" for name in write.names]
    return Grammar("lark", "\n".join(rules), is_answer)


class _Draw:
    """Draws the parts of one grammar."""

    def __init__(self, draw: random.Random, classes: Sequence[str]) -> None:
        self._draw, self._classes = draw, classes
        self.names = ["start", "x", "y"][: draw.randint(1, 3)]

    def alternatives(self, depth: int) -> str:
        counts = [self._draw.randint(1, 3) for _ in range(self._draw.choice((1, 1, 2, 3)))]
        return " | ".join(" ".join(self._part(depth) for _ in range(count)) for count in counts)

    def _part(self, depth: int) -> str:
        draw, kind = self._draw, self._draw.random()
        operator = draw.choice(_OPERATORS)
        if kind < 0.4:
            return f'"{draw.choice(_LETTERS)}"{draw.choice(_OF_LITERALS)}'
        if kind < 0.65:
            return f"/{self.regex(1)}/{operator}"
        if kind < 0.8 and depth:
            return f"({self.alternatives(depth - 1)}){operator}"
        return f"{draw.choice(self.names[1:] or self.names)}{operator}"

    def regex(self, depth: int) -> str:
        parts = []
        for _ in range(self._draw.randint(1, 2 + depth)):
            one = self._draw.choice(self._classes)
            if depth > 1 and self._draw.random() < 0.3:
                one = f"(?:{self.regex(depth - 1)}|{self.regex(depth - 1)})"
            parts.append(one + self._draw.choice(_COUNTS))
        return "".join(parts)


def reader_of(grammar: Grammar) -> Callable[[str], bool]:
    """Return whether ``re`` or the library lark accepts a text; a LarkError if it does not read the grammar."""
    if grammar.syntax == "regex":
        pattern = re.compile(grammar.definition)
        return lambda text: pattern.fullmatch(text) is not None
    parser = Lark(grammar.definition, parser="earley", lexer="dynamic_complete", ambiguity="resolve")

    def reads(text: str) -> bool:
        try:
            parser.parse(text)
        except LarkError:
            return False
        return True

    return reads


def broken_laws(bench: Bench, grammar: Grammar, number: int, counts: Counter[str]) -> Iterator[Broken]:
    """The laws that a grammar breaks; the first one ends the trial."""
    draw = random.Random(f"texts {number}")
    kind, definition = grammar.syntax, grammar.definition
    if grammar.is_answer:
        kind = "answer regex" if kind == "regex" else "grammar"
        definition = definition.replace("~1..3", "{1,3}").replace("~2", "{2}")
    try:
        matcher = text_matcher(bench.compiler, kind, definition)
    except (UnsupportedSchema, SchemaTooCostly) as error:
        counts["refused" if "longest match" not in str(error) else "refused, as a terminal takes the next one"] += 1
        return
    try:
        reads = reader_of(grammar)
    except LarkError:
        counts["not read by the library"] += 1
        return
    for _ in range(4):
        try:
            text = _walk(bench, matcher.fork(), draw, grammar)
            if text is None or len(text) > _MAX_CHARACTERS:
                counts["texts without an end"] += 1
                continue
            counts["texts"] += 1
            if not reads(text):
                yield Broken("a text is written that the grammar does not match", repr(text))
                return
            pieces = _pieces(bench, text, grammar)
            for ids in (bench.canonical(pieces), bench.bytewise(pieces), bench.split(pieces, draw)):
                _feed(bench, matcher.fork(), ids)
        except SchemaTooCostly:
            counts["ended, as too costly"] += 1
        except Broken as broken:
            yield broken
            return


def _step(matcher: Any, row: Any, begun: float) -> None:
    matcher.fill(row)
    if time.thread_time() - begun > _STEP_SECONDS:
        raise Broken("a step takes long", f"{time.thread_time() - begun:.1f} s")


@cache
def _short_tokens(bench: Bench) -> npt.NDArray[np.int32]:
    """The tokens of at most two bytes, int32 ``[words]``."""
    row, size = allocate_bitmask(1, bench.vocabulary.size)[0], bench.vocabulary.size
    TokenSet([token for token in range(size) if bench.size(token) < 3], size).fill(row)
    return row


def _walk(bench: Bench, matcher: Any, draw: random.Random, grammar: Grammar) -> str | None:
    """The text that random masks write; None if it does not end."""
    ids: list[int] = []
    for _ in range(_WALK_TOKENS):
        begun = time.thread_time()
        if matcher.is_complete() and draw.random() < 0.5:
            break
        _step(matcher, bench.row, begun)
        if not bench.row.any():
            raise Broken("a mask is empty", bench.shown(ids))
        likely = bench.row & _short_tokens(bench)  # with longer tokens a text rarely ends
        allowed = allowed_ids(likely if likely.any() and draw.random() < 0.8 else bench.row)
        token = int(draw.choice(allowed))
        if token == bench.stop:
            break
        if not matcher.accept(token):
            raise Broken("a token is in the mask and is refused", f"{bench.shown([token])} after {bench.shown(ids)}")
        ids.append(token)
    if not matcher.is_complete():
        return None
    raw = b"".join(map(bench.vocabulary.token_bytes, ids))
    try:
        if grammar.is_answer:
            return raw.decode()
        return str((decode_blocks(bench.vocabulary, ids) if bench.is_xtml else json.loads(raw))["input"])
    except UnicodeDecodeError:
        return None  # in LLGuidance's dialect, a class may match single bytes


def _pieces(bench: Bench, text: str, grammar: Grammar) -> list[Piece]:
    if grammar.is_answer:
        return [text.encode()]
    if bench.is_xtml:
        return bench.pieces(encode(bench.vocabulary, block("input", "string", text)))
    return [json.dumps({"input": text}, ensure_ascii=False).encode()]


def _feed(bench: Bench, matcher: Any, ids: Sequence[int]) -> None:
    """Check that a text is accepted in this tokenization."""
    for number, token in enumerate(ids):
        begun = time.thread_time()
        _step(matcher, bench.row, begun)
        if not has(bench.row, token) or not matcher.accept(token):
            detail = f"{bench.shown([token])} after {bench.shown(ids[:number])}"
            raise Broken("a text cannot be written in other tokens", detail)
    if not matcher.is_complete():
        raise Broken("a text is incomplete in other tokens", bench.shown(ids))


def faults_of(
    benches: Sequence[Bench], number: int, counts: Counter[str], wanted: int = 1, seconds: float = 40.0
) -> list[Fault]:
    """The laws that an example breaks; as for schemas, but examples are not reduced."""
    del wanted, seconds
    grammar = grammar_of(number)
    bench = benches[random.Random(f"encoding {number}").random() < 0.3]
    found = list(broken_laws(bench, grammar, number, counts))
    for broken in found:
        counts[f"broken: {broken.law}"] += 1
    encoding = "Kimi K3" if bench.is_xtml else "Kimi K2"
    return [Fault(broken.law, number, encoding, str(grammar), broken.detail, "--grammars ") for broken in found]
