"""The text of custom tools: grammars and expressions of clients, inside JSON and as raw text, against the library lark."""

import json
import random
import re
from typing import Any

import pytest
from lark import Lark
from lark.exceptions import LarkError

from constrained_k2 import Compiler, Vocabulary
from constrained_k2.engines.protocol import ArgumentMatcher
from constrained_k2.errors import SchemaTooCostly, UnsupportedSchema
from constrained_k2.vocabulary.bitmask import TokenSet, allocate_bitmask, allowed_ids
from tests.kit.budget import tries
from tests.kit.data import data
from tests.kit.grammars import takes, takes_masked, text_matcher
from tests.kit.xtml import block, decode, encode

# The patches of the agent Codex, in the constructs of its own grammar (which data() has, if it was fetched).
PATCH = r"""
start: "*** Begin Patch" LF file+ "*** End Patch" LF?
file: "*** Add File: " path LF added+ | "*** Delete File: " path LF
    | "*** Update File: " path LF moved? (place | line)* last?
moved: "*** Move to: " path LF
place: ("@@" | "@@ " /(.+)/) LF
line: ("+" | "-" | " ") /(.*)/ LF -> changed
added: "+" /(.*)/ LF
last: "*** End of File" LF
path: /(.+)/
%import common.LF
"""
SCRIPT = r"""
start: pragma NL SOURCE | SOURCE
pragma: /[ \t]*\/\/ @run:[^\r\n]*/
NL: /\r?\n/
SOURCE: /[\s\S]+/
"""


def written(vocabulary: Vocabulary, text: str) -> list[int]:
    """The tokens of the arguments with this text."""
    if vocabulary.format.argument_encoding == "xtml":
        return encode(vocabulary, block("input", "string", text))
    return vocabulary.encode(json.dumps({"input": text}, ensure_ascii=False))


def accepts(matcher: ArgumentMatcher, vocabulary: Vocabulary, text: str) -> bool:
    return takes_masked(matcher.fork(), vocabulary, written(vocabulary, text))


def walk(matcher: ArgumentMatcher, vocabulary: Vocabulary, seed: int) -> str:
    """The text that random tokens of the masks write, where what ends a line or a patch is likely."""
    chance, row = random.Random(seed), allocate_bitmask(1, vocabulary.size)[0]
    stop = vocabulary.format.engine_stop
    tiers = [allocate_bitmask(1, vocabulary.size)[0] for _ in range(4)]
    for tier, starts in zip(tiers, [(b"\n", b"\\"), (b"*", b"E"), (b'"',), (b"n",)], strict=True):
        found = [token for token in range(vocabulary.size) if vocabulary.ordinary_bytes(token).startswith(starts)]
        TokenSet([*found, *vocabulary.format.argument_markers], vocabulary.size).fill(tier)
    ids: list[int] = []
    while not (matcher.is_complete() and chance.random() < 0.9):
        assert len(ids) < 4000, vocabulary.decode(ids[-100:])
        matcher.fill(row)
        assert row.any(), f"nothing is allowed after {vocabulary.decode(ids)!r}"
        is_escape = bool(ids) and vocabulary.token_bytes(ids[-1]).endswith(b"\\")
        likely = tiers[3] if is_escape else chance.choice(tiers[:3])
        choices = row & likely if chance.random() < 0.8 and (row & likely).any() else row
        allowed = [token for token in allowed_ids(choices).tolist() if token != stop]
        if not allowed:
            break
        ids.append(chance.choice(allowed))
        assert matcher.accept(ids[-1])
    is_xtml = vocabulary.format.argument_encoding == "xtml"
    (member,) = (decode(vocabulary, ids) if is_xtml else json.loads(b"".join(map(vocabulary.token_bytes, ids)))).items()
    assert member[0] == "input"
    return str(member[1])


def is_patch(text: str) -> bool:
    """Return True if a text is a patch, read line by line."""
    *lines, last = text.split("\n")
    lines += [last] * bool(last)
    if len(lines) < 3 or lines[0] != "*** Begin Patch" or lines[-1] != "*** End Patch":
        return False
    kind, count, is_done = "", 0, False
    for line in lines[1:-1]:
        if found := re.fullmatch(r"\*\*\* (Add|Delete|Update) File: .+", line):
            if kind == "Add" and not count:
                return False
            kind, count, is_done = found[1], 0, False
        elif kind == "Add":
            count += 1
            if not line.startswith("+"):
                return False
        elif kind != "Update" or is_done:
            return False
        else:
            is_move = not count and line.startswith("*** Move to: ") and len(line) > len("*** Move to: ")
            is_done = line == "*** End of File"
            is_place = line == "@@" or (line.startswith("@@ ") and len(line) > len("@@ "))
            if not (is_move or is_done or is_place or line[:1] in {"+", "-", " "}) or not line:
                return False
            count += 1
    return bool(kind) and not (kind == "Add" and not count)


def reader(definition: str) -> Lark:
    """The library's parser: it has no terminals that may be empty."""
    return Lark(definition.replace("/(.*)/", "/(.+)/?"), parser="earley", lexer="dynamic_complete")


def reads(parser: Lark, text: str) -> bool:
    try:
        parser.parse(text)
    except LarkError:
        return False
    return True


@pytest.fixture(params=["ours", "Codex's"])
def patch_grammar(request: pytest.FixtureRequest) -> str:
    return PATCH if request.param == "ours" else data("codex/apply_patch.lark").read_text("utf-8")


@pytest.fixture(params=["k2", "k3"])
def either(request: pytest.FixtureRequest) -> Compiler:
    """A compiler over a small vocabulary of Kimi K2, and of Kimi K3."""
    found: Compiler = request.getfixturevalue("small_compiler" if request.param == "k2" else "k3_small_compiler")
    return found


def test_walks_are_patches_and_what_is_no_patch_is_not_reached(either: Compiler, patch_grammar: str) -> None:
    matcher, parser = text_matcher(either, "lark", patch_grammar), reader(patch_grammar)
    chance = random.Random(0)
    for seed in range(tries(6)):
        text = walk(matcher.fork(), either.vocabulary, seed)
        assert is_patch(text) and reads(parser, text), text
        assert accepts(matcher, either.vocabulary, text)
        raw = text.encode()
        for place in chance.sample(range(len(raw)), min(12, len(raw))):
            with_other = raw[:place] + bytes([chance.choice(b'\n\r\t+-@ *"\\aPx')]) + raw[place + 1 :]
            for mutant in (with_other, raw[:place] + raw[place + 1 :]):
                try:
                    other = mutant.decode()
                except UnicodeDecodeError:
                    continue
                assert accepts(matcher, either.vocabulary, other) == is_patch(other) == reads(parser, other), other


LARK: dict[str, tuple[str, list[str], list[str]]] = {
    # name -> definition, texts, no texts
    "a script": (SCRIPT, ["//\n", "x\n\ty", " \t// @run: a\r\nb", "// @run: a", '"'], [""]),
    "letter case": ('start: "aB"i /c"d/i "é"i', ['aBc"dé', 'Abc"DÉ', 'ABC"dé'], ["aBcd", 'aBc"d']),
    "ranges": ('start: "a".."c" D D: "0".."9"'.replace(" D:", "\nD:"), ["a0", "c9"], ["d0", "a"]),
    "a range of escaped characters": ('start: " ".."$"', [" ", '"', "#"], ["%", "\\", "\t"]),
    "counts": ('start: a~2..3 B~2\na: "x" "\\n"\nB: "q"', ["x\nx\nqq", "x\nx\nx\nqq"], ["x\nqq", "x\nx\nq"]),
    "optional": ('start: ["a"] b? ("c" | )\nb: "\\n"', ["", "a", "\n", "a\nc", "c"], ["b", "aa"]),
    "ignored": ('start: "[" (W ("," W)*)? "]"\nW: /\\w+/\n%ignore /[ \\n]+/', ["[a,b]", " [\na , é\n\n]\n", "[]"],
                ["[a b]", "[a,\tb]", "[a"]),
    "ignored, with escapes": ('start: "a" NL "b"\nNL: "\\n"\n%ignore /[ \\t]+/', ["a\nb", " a \t\nb\t"], ["a b", "ab"]),
    "common": ("start: CNAME SIGNED_NUMBER\n%import common (CNAME, SIGNED_NUMBER)", ["a+1.5e3", "_x7-0"], ["7", "a"]),
    "renamed": ("start: Q NEWLINE\n%import common.ESCAPED_STRING -> Q\n%import common.NEWLINE",
                ['"a\\"b"\n', '""\r\n\n'], ['"a', '"a\nb"\n', '"\\"\n']),
    "a comment": ('start: C_COMMENT "x"\n%import common.C_COMMENT', ["/* a \n*b **/x", "/**/x"], ["/*/x", "/* */ */x"]),
    "terminals of terminals": ('start: A "!"\nA: (B | "\\n")+ [C] \nB: "a" C\nC: "\\\\" | "b"',
                               ["ab!", "a\\\nb!", "\n\n!"], ["a!", "!"]),
    "empty": ('start: ("" | "a") "\\n"', ["\n", "a\n"], ["a", ""]),
    "modifiers": ('?start.2: !A -> x\n!a: "b"\nA.3: "c"'.replace("!A", "A a"), ["cb"], ["c", "b"]),
    "recursion": ('start: "(" start* ")" | "\\n"', ["(\n(\n))", "()"], ["(", ")("]),
    "ends that begin alike": ('start: (A | B) /\\n/ "."\nA: "@@"\nB: /.+/', ["@@\n.", "@@\t\n.", "a\n."], ["\n.", "@@."]),
    "groups and classes": (r"start: /(?P<n>a|b)(?:\x41|\u{42})[^\W\d_]\s\p{Lu}[]a-]{2}/", ["aAx É]-", "bBé\nZa]"],
                           ["aA_ Z]]", "aAx z]]"]),
    "a terminal goes on behind an escaped character": (
        'start: /[" ]+/ [" 1"] "1b"', ['" 1b', '  "1b'], ['" 1', "1b"],
    ),
    "rules that begin and end with themselves": (
        'start: e "!"\ne: e "+" e | e "\\"" e -> quoted | e e | "(" e ")" | "a"', ['a+a"aa!', "(a+a)a!"], ["a+!", "+a!", "!"],
    ),
    "a terminal that may be empty": ('start: /[^\\n]*/ "\\n" /[a-z]*/ ";"', ["\n;", "x\nab;"], ["x;", "\nx"]),
    "an alternative without a text": ('start: "a" ("b" x | "y" | x)? ";"\nx: "c" x', ["a;", "ay;"], ["ab;", "ab", "ac;"]),
    "delimiters outside of ASCII": (
        'start: (/[^。！«\\n]+/ ("。" | "！"))+ "«" /[^«»]*/ "»"', ['你好。天\\"气！«»', "です。«a\n»", "a。«é¿»"],
        ["你好", "。«»", "a。«»»", "a。«"],
    ),
    "characters that begin with the same byte": ('start: /é+/ "ü" /[à-ý]/? "þ"', ["éüþ", "ééüàþ"], ["éþ", "üþ", "éüàà"]),
    "letters beside a terminal of the same ones": (
        'start: (/[^\\W\\d_]{2}/ | /[α-ω]{1,72}/ "»") "Ω"', ["αβΩ", "αβγδε»Ω", "abΩ"], ["αβγΩ", "abc»Ω", "ab»Ω"],
    ),
    "counted lines": ('start: (/.{1,72}/ "\\n")+', ["x" * 72 + "\n", 'a"b\\\n' + "é\t" * 36 + "\n", "a" * 16 + "\n" + "b" * 33 + "\n"],
                      ["x" * 73 + "\n", "\n", "a\n\n", "x" * 72]),
    "a counted text": ('start: "\\"" /[^"]{3,99}/ "\\""', ['"' + "x\n" * 49 + 'y"', '"abc"', '"' + "é" * 40 + '\\"'],
                       ['"ab"', '"' + "x" * 100 + '"', '"a"b"']),
    "flags": (r"start: /a.b/s /(?i:k)c/ /d/m", ["a\nbkcd", "axbKcd"], ["a\nbKCd"]),
}  # fmt: skip
REGEX: dict[str, tuple[str, list[str], list[str]]] = {
    "a date": (r"^\d{4}-\d\d$", ["2024-01"], ["2024-1", "x2024-01"]),
    "lines": (r"([a-z\"\\]+\n)+", ["a\nb\n", '"\\\n'], ["a", "\n"]),
    "ways": (r"^a$|(?:^b|c)", ["a", "b", "c"], ["ab", ""]),
    "any": (r"(?s).*", ["", "a\n\x00é\U0001f600"], []),
    "not a line": (r".+", ["a\tb\r"], ["a\nb", ""]),
}


@pytest.mark.parametrize(("syntax", "name"), [*(("lark", name) for name in LARK), *(("regex", name) for name in REGEX)])
def test_texts(either: Compiler, syntax: str, name: str) -> None:
    definition, texts, others = (LARK if syntax == "lark" else REGEX)[name]
    matcher = text_matcher(either, syntax, definition)
    for text in texts:
        assert accepts(matcher, either.vocabulary, text), text
    for text in others:
        assert not accepts(matcher, either.vocabulary, text), text


def test_a_chain_of_many_rules_is_read_in_time(small_compiler: Compiler) -> None:
    """Each rule once; once for each link of the chain, it took four seconds, over the limit of a compilation."""
    chain = "".join(f'r{n}: "{chr(97 + n % 26)}" r{n + 1}\n' for n in range(500))
    matcher = text_matcher(small_compiler, "lark", f'start: r0\n{chain}r500: "!"')
    assert accepts(matcher, small_compiler.vocabulary, "".join(chr(97 + n % 26) for n in range(500)) + "!")


HARDLY_END = {"a comment", "recursion", "rules that begin and end with themselves", "a terminal that may be empty",
              "delimiters outside of ASCII"}  # fmt: skip


@pytest.mark.parametrize("name", sorted(LARK.keys() - HARDLY_END))
def test_walks_end_in_texts_of_the_grammar(either: Compiler, name: str) -> None:
    definition, *_ = LARK[name]
    matcher = text_matcher(either, "lark", definition)
    texts = [walk(matcher.fork(), either.vocabulary, seed) for seed in range(tries(4))]
    parser = None if name in {"empty", "groups and classes"} else reader(definition)  # the library has no such parts
    for text in texts:
        assert parser is None or reads(parser, text), text


REFUSED = {
    'start: "a': "cannot be read",
    "begin: /a/": "the rule 'start' is used and not defined",
    "start: a": "the rule 'a' is used and not defined",
    "start: A": "the terminal 'A' is used and not defined",
    "start: /a/\nstart: /b/": "'start' is defined twice",
    'start: "a" start': "no text matches the rule 'start'",
    "start: A\nA: B\nB: A": "is part of itself",
    "start: A\nA: b\nb: /x/": "refers to a rule",
    "start: /a(?=b)/": "lookaround",
    "start: /^a/": "an anchor",
    r"start: /a\b/": "a word boundary",
    r"start: /(a)\1/": "a back-reference",
    "start: /a*?/": "a lazy repetition",
    "start: /a++/": "a possessive repetition",
    "start: /[a&&b]/": "an operation on classes",
    "start: /[[:alpha:]]/": "a class in a class",
    r"start: /\p{Nope}/": "the property",
    "start: /a/x": "the flag 'x'",
    "start: /(?x)a/": "inline flags",
    "start: /(/": "a fault",
    r"start: /[^\s\S]/": "no text matches the rule 'start'",
    'start: /[\\s\\S]*/ "END"': """the rule 'start' cannot be completed: '/[\\\\s\\\\S]*/' matches as much as it can, also what '"END"'""",
    'start: a\na: NAME? "-" ID\nNAME: /[\\w-]+/\nID: /x/': "the rule 'a' cannot be completed: 'NAME ?' matches",
    'start: "say(" /.*/ ")"': "the rule 'start' cannot be completed: '/.*/' matches as much as it can, also what",
    'start: "x" /[a-z]?/ /[0-9]*/ "7"': "the rule 'start' cannot be completed",
    'start: "k" x "s"\nx: ("=" /[a-z]*/ | ";")': "the rule 'start' cannot be completed: 'x'",
    r"start: /.[^\W\w]+/": "an empty class",
    'start: "(" x~2 ")"\nx: /[a-z]+/': "the rule 'start' cannot be completed: 'x' matches as much as it can, also what 'x' begins",
    r'start: "\d"': "the escape",
    'start: "ab".."c"': "a later one",
    'start: "".."c"': "a later one",
    r'start: "\U00110000"': "above 10ffff",
    'start: "a"~3..2': "the counts",
    'start: "a"~99999': "the counts",
    "start: A\n%declare A": "%declare",
    'start: x{"a"}\nx{y}: y': "a template",
    "start: X\n%import python.X": "%import",
    "start: X\n%import .x.X": "%import",
    "start: X\n%import common.X": "common has no terminal 'X'",
    "start: /.{1,500}/ /\\n/": "too many states",
    "start: /((.{0,6}){6,})*/": "too many states",  # its chunks would take gigabytes
    "start: /(.?){40}/": "too many states",
    "start: " + "(" * 4000 + '"a"' + ")" * 4000: "nested too deeply",
}


@pytest.mark.parametrize("definition", REFUSED)
def test_what_has_no_exact_grammar_is_refused(small_compiler: Compiler, definition: str) -> None:
    with pytest.raises(UnsupportedSchema) as refused:
        text_matcher(small_compiler, "lark", definition)
    assert REFUSED[definition] in str(refused.value) and refused.value.remedy
    assert refused.value.location == "tools[name='f'].format.definition"


DOUBLED = "start: A0\n" + "\n".join(f"A{n}: A{n + 1} A{n + 1}" for n in range(60)) + '\nA60: "x"'
COSTLY: dict[str, tuple[str, Any]] = {
    "definition_characters": ("lark", "// " + "x" * (1 << 14) + '\nstart: "a"'),
    "rules": ("lark", "start: r0\n" + "\n".join(f"r{n}: r{n + 1}" for n in range(600)) + '\nr600: "x"'),
    "terminal_parts": ("lark", DOUBLED),
    "grammar_characters": ("lark", "start: " + " ".join(f"/{chr(code)}[\\w]*/ /;/" for code in range(256, 456))),
}


@pytest.mark.parametrize("budget", COSTLY)
def test_costs_have_a_bound(small_compiler: Compiler, budget: str) -> None:
    syntax, definition = COSTLY[budget]
    with pytest.raises(SchemaTooCostly) as refused:
        text_matcher(small_compiler, syntax, definition)
    assert (refused.value.budget, refused.value.actual > refused.value.limit) == (budget, True)


CHARACTERS = "aAkKsSiIzZ0_- \t\n~ſ\u212aİıßẞςσΣéÉжЖ١५ª\u0345ǅǆʰ中\u0300\xa0\u2028\ufeff\x85\u200d😀"
KELVIN = "ſ\u212aİı"
"""Letters that fold to ASCII letters in Python. With the flag ``i`` they are in no class of a grammar."""
CLASSES = [
    r"\w", r"\W", r"\d", r"\D", r"\s", r"\S", ".", "[a-z]", "[^a-z]", "[A-Z]", "k", "s", "i", "ß", "ς", "σ", "Σ", "É", "[^k]", "[^s]",
    "[^i]", "[^ß]", "[^ς]", "[^é]", r"[\w-]", r"[^\w-]", r"[\Wk]", r"[^\Wk]", r"[\ds]", r"[^\ds]", r"[\sж]", r"[^\Sж]", "[à-ý]",
    "[^à-ý]", r"(?i:\w)", r"(?i:[^k])", r"(?:k|\d)", r"(?:\w\d|s)?k",
]  # fmt: skip


@pytest.mark.parametrize("flags", ["", "i", "s", "is"])
def test_classes_of_characters_are_those_of_re(either: Compiler, flags: str) -> None:
    for pattern in CLASSES:
        matcher = text_matcher(either, "lark", f"start: /{pattern}/{flags}")
        oracle = re.compile(pattern, sum({"i": re.IGNORECASE, "s": re.DOTALL}[flag] for flag in flags))
        for character in CHARACTERS:
            is_taken = takes(matcher.fork(), written(either.vocabulary, character))
            if is_taken == bool(oracle.fullmatch(character)):
                continue
            assert not is_taken and character in KELVIN and "i" in flags + pattern, (pattern, flags, ascii(character))


def test_inline_flags_keep_classes(either: Compiler) -> None:
    matcher = text_matcher(either, "regex", r"(?i)name: \w+")
    assert accepts(matcher, either.vocabulary, "NAME: größe")
    assert not accepts(matcher, either.vocabulary, "NAME: -")
