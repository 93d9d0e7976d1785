"""Kimi K3's turns against an independent reader: random, altered and golden turns, forced tokens, and prompts."""

import json
from random import Random

import pytest

from constrained_k2 import Compiler, Vocabulary
from constrained_k2.turn.drafts.drafter import Drafter
from constrained_k2.turn.phases import Phase
from constrained_k2.vocabulary.bitmask import allocate_bitmask
from tests.kit.data import data
from tests.kit.k3_turns import CLOSE, END, OPEN, SEP, compiled, read
from tests.kit.turns import ids_of, steps, towards_the_end
from tests.turn.test_matcher import SOME, allowed

OVER = f"{CLOSE}response{SEP}"
CALLS = f"{OVER}{OPEN}tools{SEP}"
ENDED = f"{CLOSE}message{SEP}{END}"


def is_turn(ids: list[int], vocabulary: Vocabulary, *, in_reasoning: bool) -> bool:
    """True if the reader takes a turn, and ``compiled(…, "a", "bc")`` allows its calls."""
    try:
        found = read(ids, vocabulary, in_reasoning=in_reasoning)
        arguments = [argument for _, _, call in found.calls for argument in call]
        [value.decode() for _, _, value in arguments]
    except (AssertionError, IndexError, ValueError):
        return False
    return (
        all(name in {"a", "bc"} for name, _, _ in found.calls)
        and [index for _, index, _ in found.calls] == list(range(1, len(found.calls) + 1))
        and all(kind in {"string", "number", "boolean", "null", "object", "array"} for _, kind, _ in arguments)
        and all(len(key) <= 40 for key, _, _ in arguments)
    )


def test_altered_turns_are_accepted_exactly_where_the_reader_takes_them(k3_small_compiler: Compiler) -> None:
    vocabulary, chance = k3_small_compiler.vocabulary, Random(0)
    grammar = compiled(k3_small_compiler, "a", "bc")
    special = [*vocabulary.special_tokens.values(), *ids_of(vocabulary, f"{OPEN}{CLOSE}{SEP}" * 90)]
    count = {True: 0, False: 0}
    for seed in range(500):
        in_reasoning = bool(seed % 2)
        walked = Random(seed // 5)
        whole = steps(
            grammar.matcher(in_reasoning=in_reasoning), walked, 3000, towards_the_end(vocabulary, walked, 0.15)
        )
        at, to = chance.randrange(len(whole)), chance.randrange(len(whole))
        cut, moved = whole[:at] + whole[at + 1 :], whole.copy()
        moved[at], moved[to] = moved[to], moved[at]
        twice, other = [*whole[:at], whole[to], *whole[at:]], [*cut[:at], chance.choice(special), *cut[at:]]
        for ids in (cut, whole[:at], moved, twice, other):
            expected = is_turn(ids, vocabulary, in_reasoning=in_reasoning)
            matcher = grammar.matcher(in_reasoning=in_reasoning)
            assert (matcher.accept_tokens(ids) and matcher.is_terminated()) == expected, vocabulary.decode(ids)
            count[expected] += 1
    assert min(count.values()) > 200, count


@pytest.mark.slow
def test_the_goldens_turns_are_under_the_mask(k3_real_compiler: Compiler) -> None:
    """Every assistant message of the goldens but the JSON block, which is parsed and never offered."""
    vocabulary = k3_real_compiler.vocabulary
    separator = vocabulary.special_tokens[SEP]
    turns = calls = said = 0
    for path in sorted(data("kimi_k3/rendered").glob("*.json")):
        golden = json.loads(path.read_text())
        said += sum(message["role"] == "assistant" for message in golden["request"]["messages"])
        opened = golden["request"]["options"].get("add_generation_prompt", True)
        thinking = golden["request"]["options"].get("thinking", True)
        assert vocabulary.opens_reasoning(golden["ids"]) == (opened and thinking)
        message: list[int] = []
        for token_id in golden["ids"]:
            message.append(token_id)
            if token_id != vocabulary.format.turn_end:
                continue
            text = vocabulary.decode(message)
            if text.startswith(f'{OPEN}message role="assistant"') and f"{OPEN}json" not in text:
                begun = message.index(separator, message.index(separator) + 1) + 1
                ids = message[begun:]
                in_reasoning = vocabulary.opens_reasoning(message[:begun])
                assert in_reasoning == thinking
                found = read(ids, vocabulary, in_reasoning=in_reasoning)
                names = dict.fromkeys([name for name, _, _ in found.calls]) or {"unused": None}
                matcher = compiled(k3_real_compiler, *names).matcher(in_reasoning=in_reasoning)
                row = allocate_bitmask(1, vocabulary.size)
                for each in ids:
                    matcher.fill_bitmask(row, 0)
                    assert int(row[0, each >> 5]) >> (each & 31) & 1, (path.name, vocabulary.decode([each]))
                    assert matcher.accept_tokens([each])
                assert matcher.is_terminated()
                turns, calls = turns + 1, calls + len(found.calls)
            message = []
    assert (turns, calls) == (said - 1, 10)


@pytest.mark.slow
def test_forced_tokens_are_the_reference_pieces(k3_real_compiler: Compiler) -> None:
    vocabulary = k3_real_compiler.vocabulary
    matcher = compiled(k3_real_compiler, "_id", tool_choice="required", parallel_tool_calls=False).matcher()
    opening, closing, separator = (vocabulary.special_tokens[text] for text in (OPEN, CLOSE, SEP))
    header = [10257, 4453, 878, *vocabulary.encode("_id"), 1, 4002, 878, *vocabulary.encode("1"), 1]
    expected = [closing, 12092, separator, opening, 25385, separator, opening, *header, separator]
    assert matcher.forced_tokens() == expected
    assert matcher.forced_tokens(5) == expected[:5]
    rest = ids_of(vocabulary, f"{CLOSE}call{SEP}{CLOSE}tools{SEP}{ENDED}")
    assert Drafter(matcher).draft(64) == [*expected, *rest]
    assert matcher.accept_tokens(expected)
    assert matcher.phase is Phase.ARGUMENTS
    assert matcher.accept_tokens(rest[:1])
    assert matcher.forced_tokens() == rest[1:]
    assert Drafter(matcher).draft(64) == rest[1:]
    joined = vocabulary.encode('call tool="_id" index="1"')
    assert joined != header
    matcher.reset()
    assert matcher.accept_tokens([*expected[:7], *joined, separator])


def test_a_spelled_marker_is_text(k3_small_compiler: Compiler) -> None:
    vocabulary = k3_small_compiler.vocabulary
    matcher = compiled(k3_small_compiler, "a").matcher()
    before = f'{CALLS}{OPEN}call tool="a" index="1"{SEP}{OPEN}argument key="k" type="string"{SEP}'
    value = f"x{CLOSE}argument{SEP}{CLOSE}call{SEP}{END}"
    assert matcher.accept_tokens([*ids_of(vocabulary, before), *vocabulary.encode(value)])
    assert matcher.phase is Phase.ARGUMENTS
    assert allowed(matcher) == {CLOSE, SOME}
    after = f"{CLOSE}argument{SEP}{CLOSE}call{SEP}{CLOSE}tools{SEP}{ENDED}"
    ids = [*ids_of(vocabulary, before), *vocabulary.encode(value), *ids_of(vocabulary, after)]
    matcher.reset()
    assert matcher.accept_tokens(ids)
    ((_, _, ((_, _, written),)),) = read(ids, vocabulary, in_reasoning=False).calls
    assert written == value.encode()


def test_the_prompt_that_opens_reasoning(k3_small_compiler: Compiler) -> None:
    vocabulary = k3_small_compiler.vocabulary
    opened = ids_of(vocabulary, f"Hi{OPEN}think{SEP}")
    assert vocabulary.opens_reasoning(opened)
    assert vocabulary.opens_reasoning(opened[1:])
    split = [vocabulary.special_tokens[OPEN], *map(vocabulary.find, (b"t", b"h", b"i", b"n", b"k")), opened[-1]]
    assert vocabulary.opens_reasoning([each for each in split if each is not None])
    for other in ([], opened[:-1], opened[-2:], [*opened, opened[0]], ids_of(vocabulary, f"{OPEN}response{SEP}"),
                  ids_of(vocabulary, f"{OPEN}xthink{SEP}"), ids_of(vocabulary, f"{CLOSE}think{SEP}")):  # fmt: skip
        assert not vocabulary.opens_reasoning(other)
