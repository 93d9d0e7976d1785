r"""Parses regexes of Rust's ``regex`` crate and of Lark grammars into trees of Python's regex parser.

For regular languages, Rust's and Python's dialects differ little. Digits, spaces and word characters are Unicode's.

    (?P<a>\d+)          [\s\S]          \p{L}{2}        a(?i:b)
"""

import re
import re._constants as sre  # type: ignore[import-not-found] # standard library, without stubs
import re._parser as parser  # type: ignore[import-not-found] # standard library, without stubs
import unicodedata
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from itertools import groupby
from typing import Any

from constrained_k2.grammar.patterns.characters import Ranges, Untranslatable, complement
from constrained_k2.grammar.patterns.tree import LOOKS, REPEATS, Item, Items, parts, walk, without_flags
from constrained_k2.grammar.patterns.unfolding import END, START
from constrained_k2.grammar.spelling import TOP

# Syntax of the dialect that Python's parser does not read, or reads as something else.
_DIFFERENT = re.compile(
    r"\\[xuU]\{(?P<code>[0-9a-fA-F]{1,8})\}|\\(?P<property>[pP](?:\{[^}]*\}|.))|\\(?P<end>z)|\(\?(?P<name><)(?![=!])"
    r"|(?P<open>\[\^?\]?)|(?P<close>\])|(?P<operator>&&|--|~~)|\\.",
    re.DOTALL,
)
_SPACE = [(9, 13), (0x20, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029),
          (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)]  # fmt: skip
_NO_LINE_END = [(0, 9), (11, TOP)]
_ANCHORS = {(sre.AT, sre.AT_BEGINNING_STRING): START, (sre.AT, sre.AT_END_STRING): END}
_PROBLEMS = {
    **dict.fromkeys(LOOKS, "lookaround"),
    sre.AT: "an anchor or a word boundary",
    sre.GROUPREF: "a back-reference",
    sre.MIN_REPEAT: "a lazy repetition",
    sre.POSSESSIVE_REPEAT: "a possessive repetition",
    sre.ATOMIC_GROUP: "an atomic group",
}
_MAX_WRITTEN_OUT = 1 << 18  # max characters that the properties of an expression are written out to
_FLAGS = {"i": re.IGNORECASE, "s": re.DOTALL, "m": re.MULTILINE, "u": re.UNICODE}


def parse_rust(pattern: str, flags: str = "", *, is_whole: bool = False, may_be_lazy: bool = False) -> Items:
    """Return the tree of an expression, without assertions.

    Args:
        pattern: The expression.
        flags: Letters after the expression, as in Lark. Under ``i``, a non-ASCII letter that folds to an ASCII letter,
            such as the Kelvin sign, is neither in a class of letters nor in its negation.
        is_whole: A match must be the whole text, so that anchors at the ends mean nothing.
        may_be_lazy: Accept lazy repetitions, which match the same whole texts as greedy ones.

    Raises:
        Untranslatable: The expression is malformed, or has a part that a grammar's terminal cannot have.
    """
    if unknown := set(flags) - _FLAGS.keys():
        raise Untranslatable(f"the flag {min(unknown)!r}")
    try:
        parsed = parser.parse(_in_python(pattern), sum(_FLAGS[flag] for flag in set(flags)))
    except (re.error, OverflowError) as error:
        raise Untranslatable(f"a fault: {error}") from error
    given = parsed.state.flags
    if given & ~(re.UNICODE | re.IGNORECASE | re.DOTALL | re.MULTILINE):
        raise Untranslatable("inline flags other than i, s and m")
    items = [_in_rust(item) for item in without_flags(parsed, given)]
    if is_whole and not given & re.MULTILINE:
        items = _without_ends(items, START, 0)
        items = _without_ends(items, END, -1)
    for operation, _ in walk(items):
        if operation in _PROBLEMS and not (may_be_lazy and operation is sre.MIN_REPEAT):
            raise Untranslatable(_PROBLEMS[operation])
    return items


def _in_python(pattern: str) -> str:
    depth = written_out = 0

    def written(found: re.Match[str]) -> str:
        nonlocal depth, written_out
        kind, text = found.lastgroup, found[0]
        if kind == "code":
            code = int(found["code"], 16)
            if code > TOP:
                raise Untranslatable(f"the code {text}")
            return f"\\U{code:08x}"
        if kind == "property":
            ranges = _category(text[2:].strip("{}"))
            spelled = "".join(rf"\U{low:08x}-\U{high:08x}" for low, high in ranges)
            written_out += len(spelled)
            if written_out > _MAX_WRITTEN_OUT:
                raise Untranslatable("too many character properties")
            if text[1] == "p":
                return spelled if depth else f"[{spelled}]"
            if depth:
                raise Untranslatable("a negated character property in a class")
            return f"[^{spelled}]"
        if kind == "end":
            return r"\Z"
        if kind == "name":
            return text if depth else "(?P<"
        if kind == "open" and depth:
            raise Untranslatable("a class in a class")
        if kind in {"open", "close"}:
            depth = int(kind == "open")
        if kind == "operator" and depth:
            raise Untranslatable("an operation on classes")
        return text

    return _DIFFERENT.sub(written, pattern)


def _in_rust(item: Item) -> Item:
    operation, argument = item
    if operation is sre.ANY:
        return _class(_NO_LINE_END)
    if operation is sre.NOT_LITERAL:
        return _class(complement([(argument, argument)]))
    if operation is sre.IN:
        return sre.IN, [new for member in argument for new in _member(member)]
    if operation is sre.AT:
        return _ANCHORS.get(item, item)
    inner = [list(map(_in_rust, part)) for part in parts(item)]
    if operation is sre.BRANCH:
        return operation, (None, inner)
    if operation is sre.SUBPATTERN or operation in REPEATS:
        return operation, (*argument[:-1], inner[0])
    return item


def _member(member: Item) -> Items:
    operation, argument = member
    if operation is not sre.CATEGORY:
        return [member]
    named: dict[Any, Callable[[], Ranges]] = {
        sre.CATEGORY_DIGIT: _digits,
        sre.CATEGORY_WORD: _words,
        sre.CATEGORY_SPACE: lambda: _SPACE,
        sre.CATEGORY_NOT_DIGIT: lambda: complement(_digits()),
        sre.CATEGORY_NOT_WORD: lambda: complement(_words()),
        sre.CATEGORY_NOT_SPACE: lambda: complement(_SPACE),
    }
    return list(_class(named[argument]())[1])


def _class(ranges: Ranges) -> Item:
    return sre.IN, [(sre.RANGE, pair) for pair in ranges]


@cache
def _digits() -> Ranges:
    return _matching(r"\d+")


@cache
def _words() -> Ranges:
    return _matching(r"\w+")


def _category(name: str) -> Ranges:
    """The characters of a general category, by its short name: ``L``, ``Lu``."""
    found = [pair for category, pairs in _categories().items() if name and category.startswith(name) for pair in pairs]
    if not found:
        raise Untranslatable(f"the property {name[:40]!r}")
    return found


@cache
def _categories() -> dict[str, Ranges]:
    found = defaultdict[str, Ranges](list)
    for category, codes in groupby(range(TOP + 1), lambda code: unicodedata.category(chr(code))):
        first, *_, last = [*codes] * 2
        found[category].append((first, last))
    return found


def _matching(pattern: str) -> Ranges:
    return [(found.start(), found.end() - 1) for found in re.finditer(pattern, "".join(map(chr, range(TOP + 1))))]


def _without_ends(items: Items, anchor: Item, end: Any) -> Items:
    """Return items without an anchor at one end; also not inside groups at that end."""
    if not items:
        return items
    last = items[end]
    rest = items[1:] if end == 0 else items[:-1]
    if last == anchor:
        return _without_ends(rest, anchor, end)
    if last[0] is sre.BRANCH:
        new: Item = sre.BRANCH, (None, [_without_ends(each, anchor, end) for each in last[1][1]])
    elif last[0] is sre.SUBPATTERN:
        new = sre.SUBPATTERN, (*last[1][:-1], _without_ends(last[1][3], anchor, end))
    else:
        return items
    return [new, *rest] if end == 0 else [*rest, new]
