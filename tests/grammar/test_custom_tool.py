"""The text of custom tools: grammars and expressions of clients, inside JSON and as raw text, against the library lark."""

import json
import random
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from constrained_k2 import Compiler, Vocabulary
from constrained_k2.engines.protocol import ArgumentMatcher
from constrained_k2.errors import SchemaTooCostly, UnsupportedSchema
from constrained_k2.vocabulary.bitmask import TokenSet, allocate_bitmask, allowed_ids
from tests.kit.budget import tries
from tests.kit.data import data
from tests.kit.grammars import takes, takes_masked, text_matcher
from tests.kit.xtml import block, decode, encode
from tests.laws.client_grammars import Grammar, reader_of

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
CASES = tomllib.loads(Path(__file__).with_name("custom_tools.toml").read_text("utf-8"))
SCRIPT = CASES["lark"]["a script"]["definition"]
CHAIN = "".join(chr(97 + n % 26) for n in range(500))
CASES["lark"]["a chain of many rules"] = {  # once for each link of the chain, it took four seconds, over the limit
    "definition": "start: r0\n" + "".join(f'r{n}: "{CHAIN[n]}" r{n + 1}\n' for n in range(500)) + 'r500: "!"',
    "accepted": [f"{CHAIN}!"],
    "rejected": [CHAIN],
}


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


def reader(definition: str) -> Callable[[str], bool]:
    """The library's reading of a grammar: it has no terminals that may be empty."""
    return reader_of(Grammar("lark", definition.replace("/(.*)/", "/(.+)/?"), is_answer=False))


@pytest.fixture(params=["ours", "Codex's"])
def patch_grammar(request: pytest.FixtureRequest) -> str:
    return PATCH if request.param == "ours" else data("codex/apply_patch.lark").read_text("utf-8")


@pytest.fixture(params=["k2", "k3"])
def either(request: pytest.FixtureRequest) -> Compiler:
    """A compiler over a small vocabulary of Kimi K2, and of Kimi K3."""
    found: Compiler = request.getfixturevalue("small_compiler" if request.param == "k2" else "k3_small_compiler")
    return found


def test_walks_are_patches_and_what_is_no_patch_is_not_reached(either: Compiler, patch_grammar: str) -> None:
    matcher, reads = text_matcher(either, "lark", patch_grammar), reader(patch_grammar)
    chance = random.Random(0)
    for seed in range(tries(6)):
        text = walk(matcher.fork(), either.vocabulary, seed)
        assert reads(text), text
        assert accepts(matcher, either.vocabulary, text)
        raw = text.encode()
        for place in chance.sample(range(len(raw)), min(12, len(raw))):
            with_other = raw[:place] + bytes([chance.choice(b'\n\r\t+-@ *"\\aPx')]) + raw[place + 1 :]
            for mutant in (with_other, raw[:place] + raw[place + 1 :]):
                try:
                    other = mutant.decode()
                except UnicodeDecodeError:
                    continue
                assert accepts(matcher, either.vocabulary, other) == reads(other), other


@pytest.mark.parametrize(("syntax", "name"), [(syntax, name) for syntax in ("lark", "regex") for name in CASES[syntax]])
def test_texts(either: Compiler, syntax: str, name: str) -> None:
    case = CASES[syntax][name]
    matcher = text_matcher(either, syntax, case["definition"])
    for text in case["accepted"]:
        assert accepts(matcher, either.vocabulary, text), text
    for text in case["rejected"]:
        assert not accepts(matcher, either.vocabulary, text), text


HARDLY_END = {"a comment", "a chain of many rules", "recursion", "rules that begin and end with themselves", "a terminal that may be empty",
              "delimiters outside of ASCII"}  # fmt: skip


@pytest.mark.parametrize("name", sorted(CASES["lark"].keys() - HARDLY_END))
def test_walks_end_in_texts_of_the_grammar(either: Compiler, name: str) -> None:
    definition = CASES["lark"][name]["definition"]
    matcher = text_matcher(either, "lark", definition)
    texts = [walk(matcher.fork(), either.vocabulary, seed) for seed in range(tries(4))]
    reads = None if name in {"empty", "groups and classes"} else reader(definition)  # the library has no such parts
    for text in texts:
        assert reads is None or reads(text), text


@pytest.mark.parametrize(
    ("definition", "problem"),
    [*CASES["refused"], ("start: " + "(" * 4000 + '"a"' + ")" * 4000, "nested too deeply")],
    ids=[*(definition for definition, _ in CASES["refused"]), "4,000 groups"],
)
def test_what_has_no_exact_grammar_is_refused(small_compiler: Compiler, definition: str, problem: str) -> None:
    with pytest.raises(UnsupportedSchema) as refused:
        text_matcher(small_compiler, "lark", definition)
    assert problem in str(refused.value) and refused.value.remedy
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
