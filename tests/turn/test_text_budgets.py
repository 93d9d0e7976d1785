"""The finish reserve in texts of a client's grammar: custom tools in each format, and answers."""

import json
import random
from typing import Any

import numpy as np
import pytest

from constrained_k2 import Compiler
from constrained_k2.turn.finish_budget import FinishBudget
from constrained_k2.turn.matcher import ToolCallMatcher
from tests.grammar.test_custom_tool import PATCH, SCRIPT
from tests.kit.budget import tries
from tests.kit.turns import call_start, check_states, matcher_of, steps
from tests.kit.walks import row_of as mask

RESERVE = 300  # includes Kimi K3's tags, which random choices split into many tokens
# (a terminal that could go on forever, a terminal that ends it)
OPEN = (
    ("[^;]+", ";"), ("[a-z ]*", '"'), ("[^\\n]*", "\n"), (".+", "\n"), ("[A-Z_]+", "="), ("(ab|ba)+", "."),
    ("\\w+", "\\"), ("[0-9]{2,}", "-"), ("é+", "日"),
)  # fmt: skip
CLOSED = ("x{2,4}y", "[0-9]{3}:", '"[^"\\n]*"', "if |else ", "<[a-z]+>", "'([^'\\\\]|\\\\.)*'")
TEXTS = ("END\n", "a;", '"', "\\\n", "--", "\u4e2d")
HAND = (
    PATCH, SCRIPT, 'start: /[^;]+/ ";"', 'start: "\\"" /[a-z ]*/ "\\""', 'start: (/[a-z]+/ "\\n")+ "END"',
    'start: /[a-z]+/ ("b" | "!!")', 'start: "(" start* ")" | /[a-z]+/ ";"',
    'start: expr ";"\nexpr: expr ("+" | "*") expr | /[0-9]+/ | "(" expr ")"\n%ignore " "',
)  # fmt: skip
REGEXES = ("[a-z]+;[0-9]{4}", "(a|b)*abb", '"([^"\\\\]|\\\\.)*"', "[\\s\\S]*END", "(yes|no), because [^.]+\\.")


def part(chance: random.Random, depth: int = 0) -> str:
    """Return a random part of a rule. Every prefix of its texts can be completed."""
    kind = chance.randrange(4 if depth > 2 else 10)
    if kind == 0:
        text, end = chance.choice(OPEN[4:] if depth else OPEN)  # a broad class would match the text next to it too
        return f"/{text}/ {json.dumps(end, ensure_ascii=False)}"
    if kind == 1:
        return f"/{chance.choice(CLOSED)}/"
    if kind == 2:
        return json.dumps(chance.choice(TEXTS), ensure_ascii=False)
    if kind == 3:
        return "nested"
    inner = [part(chance, depth + 1) for _ in range(chance.randint(2, 3))]
    if kind in {4, 5}:
        return " ".join(inner)
    if kind == 6:
        return f"({' | '.join(inner)})"
    if kind == 7:
        return f"({inner[0]}){chance.choice(('+', '*', '?', '~2', '~1..3'))}"
    return f"{chance.choice(('[', '{', '(*'))!r} {inner[0]} {chance.choice((']', '}', '*)'))!r}".replace("'", '"')


def generated(seed: int) -> str:
    chance = random.Random(seed)
    nested = f'nested: "(" {part(chance, 1)} ")" | {part(chance, 2)} | "."'
    return f"start: {part(chance)} {part(chance)}\n{nested}" + chance.choice(("", '\n%ignore " "'))


def expression(seed: int) -> str:
    chance = random.Random(seed)
    alternatives = []
    for _ in range(chance.randint(1, 2)):
        text, end = chance.choice(OPEN)
        alternatives.append(
            f"(?:{chance.choice(CLOSED)})?(?:{text}){'[^abx]' if end == chr(92) else end}(?:{chance.choice(CLOSED)})"
        )
    return "|".join(alternatives)


def custom(definition: str, syntax: str = "lark") -> dict[str, Any]:
    form = {"type": "grammar", "syntax": syntax, "definition": definition}
    return {"tools": [{"type": "custom", "name": "f", "format": form}], "tool_choice": "required"}


def answer(definition: str, syntax: str = "grammar") -> dict[str, Any]:
    return {"structured_outputs": {syntax: definition}}


@pytest.fixture(scope="module")
def budget(each_compiler: Compiler) -> FinishBudget:
    return FinishBudget(each_compiler.vocabulary)


def check_walks(compiler: Compiler, budget: FinishBudget, body: dict[str, Any], seeds: range) -> None:
    """Random turns end within their budget."""
    for seed in seeds:
        chance, before = random.Random(seed), (0, 40, 120)[seed % 3]
        matcher = matcher_of(compiler, body)
        budget.apply(matcher, RESERVE + before, RESERVE)
        ids = steps(matcher, chance, RESERVE + before)
        assert matcher.is_terminated(), (body, compiler.vocabulary.decode(ids))


def test_generated_grammars(each_compiler: Compiler, budget: FinishBudget) -> None:
    for seed in range(tries(24)):
        check_walks(each_compiler, budget, custom(generated(seed)), range(seed, seed + 3))


def test_generated_expressions(each_compiler: Compiler, budget: FinishBudget) -> None:
    for seed in range(tries(16)):
        check_walks(each_compiler, budget, custom(expression(seed), "regex"), range(seed, seed + 3))
        check_walks(each_compiler, budget, answer(expression(seed), "regex"), range(seed, seed + 2))


def test_generated_answers(each_compiler: Compiler, budget: FinishBudget) -> None:
    for seed in range(tries(16)):
        definition = generated(seed)
        if "~" not in definition and "%ignore" not in definition:  # LLGuidance spells counts differently
            check_walks(each_compiler, budget, answer(definition), range(seed, seed + 3))


BODIES = [*map(custom, HAND), *(make(pattern, "regex") for pattern in REGEXES for make in (custom, answer)),
          answer('root ::= "(" root ")" | [a-z]+ ";"'), answer("^\\s*<x>.*?</x>$", "regex")]  # fmt: skip


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_grammars_and_expressions(each_compiler: Compiler, budget: FinishBudget, body: dict[str, Any]) -> None:
    check_walks(each_compiler, budget, body, range(tries(6)))


def test_rollbacks_and_forks_filter_alike(each_compiler: Compiler, budget: FinishBudget) -> None:
    for seed in range(tries(8)):
        body, chance = custom(generated(seed)), random.Random(seed)

        def make(body: Any = body) -> ToolCallMatcher:
            matcher = matcher_of(each_compiler, body)
            budget.apply(matcher, RESERVE + 30, RESERVE)
            return matcher

        check_states(make, steps(make(), chance), chance)


def test_a_long_text_is_completed(small_compiler: Compiler) -> None:
    vocabulary, line = small_compiler.vocabulary, "a line of a long text\n"
    matcher = matcher_of(small_compiler, custom('start: (/[a-z ]+/ "\\n")+ "END"'))
    ids = [*call_start(vocabulary), *vocabulary.encode(json.dumps({"input": line * 400 + "a l"})[:-2])]
    FinishBudget(vocabulary).apply(matcher, len(ids) + 40, 60)
    assert matcher.accept_tokens(ids)
    steps(matcher, random.Random(0), 40)
    assert matcher.is_terminated()
    assert vocabulary.decode(matcher.token_ids()).count("END") == 1


def test_grammars_whose_rules_are_not_read_are_left_to_the_model(small_compiler: Compiler) -> None:
    body = custom('start: ("a"~0..90)~0..90 ";"')
    matcher, plain = matcher_of(small_compiler, body), matcher_of(small_compiler, body)
    FinishBudget(small_compiler.vocabulary).apply(matcher, 100, 100)
    ids = [*call_start(small_compiler.vocabulary), *small_compiler.vocabulary.encode('{"input": "a')]
    assert matcher.accept_tokens(ids) and plain.accept_tokens(ids)
    assert np.array_equal(mask(matcher), mask(plain))
