"""Kimi K3's turns: the joints of several tokens, call headers, and random walks that an independent reader reads."""

import json
from random import Random
from typing import Any

import pytest

from constrained_k2 import Compiler, Vocabulary
from constrained_k2.formats.kimi_k3 import KIMI_K3
from constrained_k2.turn.drafts.drafter import Drafter
from constrained_k2.turn.phases import Phase
from constrained_k2.turn.pipeline import fill_bitmasks
from constrained_k2.vocabulary.bitmask import allocate_bitmask, allowed_ids
from tests.kit.data import data
from tests.kit.k3_turns import CLOSE, END, OPEN, SEP, compiled, ids_of, read, walk

ANSWER = {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": [1, 23]}}}}
OVER = f"{CLOSE}response{SEP}"
CALLS = f"{OVER}{OPEN}tools{SEP}"
ENDED = f"{CLOSE}message{SEP}{END}"


def allowed(matcher: Any, vocabulary: Vocabulary) -> set[int]:
    row = allocate_bitmask(1, vocabulary.size)
    matcher.fill_bitmask(row, 0)
    return set(allowed_ids(row[0]).tolist())


def markers(matcher: Any, vocabulary: Vocabulary) -> set[str]:
    return {text for each in allowed(matcher, vocabulary) if (text := vocabulary.special_text(each)) is not None}


def accepts(compiler: Compiler, grammar: Any, text: str, *, in_reasoning: bool = False) -> bool:
    matcher = grammar.matcher(in_reasoning=in_reasoning)
    return bool(matcher.accept_tokens(ids_of(compiler.vocabulary, text)) and matcher.is_terminated())


def call(name: str, index: int) -> str:
    return f'{OPEN}call tool="{name}" index="{index}"{SEP}{CLOSE}call{SEP}'


def turn(*calls: str, text: str = "") -> str:
    section = f"{OPEN}tools{SEP}{''.join(calls)}{CLOSE}tools{SEP}" if calls else ""
    return f"{text}{OVER}{section}{ENDED}"


def test_what_each_choice_accepts(k3_small_compiler: Compiler) -> None:
    auto = compiled(k3_small_compiler, "a", "b")
    required = compiled(k3_small_compiler, "a", "b", tool_choice="required")
    one = compiled(k3_small_compiler, "a", "b", parallel_tool_calls=False)
    named = compiled(k3_small_compiler, "a", "b", tool_choice={"type": "function", "function": {"name": "b"}})
    none = compiled(k3_small_compiler, "a", "b", tool_choice="none")
    cases = {
        turn(): (1, 0, 1, 0, 1),
        turn(text="Hi"): (1, 0, 1, 0, 1),
        turn(call("a", 1)): (1, 1, 1, 0, 0),
        turn(call("b", 1)): (1, 1, 1, 1, 0),
        turn(call("b", 1), text="Hi"): (1, 0, 1, 0, 0),
        turn(call("a", 1), call("b", 2)): (1, 1, 0, 0, 0),
        turn(call("a", 0)): (0, 0, 0, 0, 0),
        turn(call("a", 2)): (0, 0, 0, 0, 0),
        turn(call("a", 1), call("b", 1)): (0, 0, 0, 0, 0),
        turn(call("c", 1)): (0, 0, 0, 0, 0),
        turn("x"): (0, 0, 0, 0, 0),
        f"{OVER}{OPEN}tools{SEP}{CLOSE}tools{SEP}{ENDED}": (0, 0, 0, 0, 0),
        f"{OVER}{CLOSE}message{SEP}": (0, 0, 0, 0, 0),
        f"Hi{ENDED}": (0, 0, 0, 0, 0),
        f"{OVER}{turn()}": (0, 0, 0, 0, 0),
        f"{OVER} {ENDED}": (0, 0, 0, 0, 0),
    }
    for text, expected in cases.items():
        found = [accepts(k3_small_compiler, grammar, text) for grammar in (auto, required, one, named, none)]
        assert found == list(map(bool, expected)), text
        thought = f"why?{CLOSE}think{SEP}{OPEN}response{SEP}{text}"
        found = [
            accepts(k3_small_compiler, grammar, thought, in_reasoning=True)
            for grammar in (auto, required, one, named, none)
        ]
        assert found == list(map(bool, expected)), thought
        assert not any(accepts(k3_small_compiler, grammar, thought) for grammar in (auto, required, one, named, none))


def test_masks_at_the_joints(k3_small_compiler: Compiler) -> None:
    vocabulary = k3_small_compiler.vocabulary
    matcher = compiled(k3_small_compiler, "a").matcher(in_reasoning=True)
    steps: list[tuple[str, set[str]]] = [
        ("why", {CLOSE}), (CLOSE, set()), ("think", {SEP}), (SEP, {OPEN}), (OPEN, set()), ("response", {SEP}), (SEP, {CLOSE}),
        ("text", {CLOSE}), (CLOSE, set()), ("response", {SEP}), (SEP, {OPEN, CLOSE}), (OPEN, set()), ("tools", {SEP}),
        (SEP, {OPEN}), (OPEN, set()), ('call tool="a" index="1"', {SEP}), (SEP, {OPEN, CLOSE}), (CLOSE, set()),
        ("call", {SEP}), (SEP, {OPEN, CLOSE}), (CLOSE, set()), ("tools", {SEP}), (SEP, {CLOSE}), (CLOSE, set()),
        ("message", {SEP}), (SEP, {END}), (END, {END}),
    ]  # fmt: skip
    assert markers(matcher, vocabulary) == {CLOSE}
    for text, expected in steps:
        assert matcher.accept_tokens(ids_of(vocabulary, text))
        assert markers(matcher, vocabulary) == expected, text
    assert matcher.is_terminated()


def test_any_split_of_a_tag_is_allowed_and_nothing_else() -> None:
    vocabulary = Vocabulary(
        dict(enumerate([bytes((byte,)) for byte in range(256)] + [b"res", b"response", b"responses"])),
        {text: 300 + number for number, text in enumerate(dict.fromkeys(KIMI_K3.marker_texts.values()))},
        320,
        Vocabulary.of_bytes().encoder,
    )
    matcher = compiled(Compiler(vocabulary), "a").matcher()
    assert matcher.accept_tokens([vocabulary.format.call_end])
    assert matcher.phase is Phase.JOINT
    for written in range(len("response")):
        rest = b"response"[written:]
        expected = {token for token in range(260) if (raw := vocabulary.ordinary_bytes(token)) and rest.startswith(raw)}
        assert allowed(matcher, vocabulary) == expected
        assert not matcher.validate_tokens([vocabulary.format.argument_begin])
        assert matcher.accept_tokens(rest[:1])
    assert allowed(matcher, vocabulary) == {vocabulary.format.argument_begin}


def test_an_answer_with_a_form(k3_small_compiler: Compiler) -> None:
    vocabulary = k3_small_compiler.vocabulary
    grammar = compiled(k3_small_compiler, "a", **ANSWER)
    assert accepts(k3_small_compiler, grammar, turn(text="23"))
    assert accepts(k3_small_compiler, grammar, turn(call("a", 1)))
    assert not accepts(k3_small_compiler, grammar, turn())
    assert not accepts(k3_small_compiler, grammar, turn(text="2"))
    assert not accepts(k3_small_compiler, grammar, turn(call("a", 1), text="1"))
    assert not accepts(k3_small_compiler, compiled(k3_small_compiler, **ANSWER), turn(call("a", 1)))
    matcher = grammar.matcher()
    assert markers(matcher, vocabulary) == {CLOSE}
    assert matcher.accept_tokens(ids_of(vocabulary, f"{OVER}"))
    assert markers(matcher, vocabulary) == {OPEN}
    matcher.reset()
    assert matcher.accept_tokens(ids_of(vocabulary, "2"))
    assert markers(matcher, vocabulary) == set()
    assert matcher.accept_tokens(ids_of(vocabulary, "3"))
    assert markers(matcher, vocabulary) == {CLOSE}
    assert matcher.accept_tokens(ids_of(vocabulary, OVER))
    assert markers(matcher, vocabulary) == {CLOSE}
    assert not markers(compiled(k3_small_compiler, **ANSWER).matcher(), vocabulary)


def test_an_answer_that_may_be_empty(k3_small_compiler: Compiler) -> None:
    grammar = compiled(k3_small_compiler, "a", structured_outputs={"regex": "x*"})
    assert accepts(k3_small_compiler, grammar, turn())
    assert accepts(k3_small_compiler, grammar, turn(text="xx"))
    assert accepts(k3_small_compiler, grammar, turn(call("a", 1)))
    assert not accepts(k3_small_compiler, grammar, turn(call("a", 1), text="x"))
    matcher = grammar.matcher()
    assert matcher.accept_tokens(ids_of(k3_small_compiler.vocabulary, OVER))
    assert markers(matcher, k3_small_compiler.vocabulary) == {OPEN, CLOSE}


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
    special = [
        *vocabulary.special_tokens.values(),
        *(vocabulary.special_tokens[text] for text in (OPEN, CLOSE, SEP) * 90),
    ]
    count = {True: 0, False: 0}
    for seed in range(500):
        in_reasoning = bool(seed % 2)
        whole = walk(grammar.matcher(in_reasoning=in_reasoning), vocabulary, seed // 5)
        at, to = chance.randrange(len(whole)), chance.randrange(len(whole))
        cut, moved = whole[:at] + whole[at + 1 :], whole.copy()
        moved[at], moved[to] = moved[to], moved[at]
        for ids in (
            cut,
            whole[:at],
            moved,
            [*whole[:at], whole[to], *whole[at:]],
            [*cut[:at], chance.choice(special), *cut[at:]],
        ):
            expected = is_turn(ids, vocabulary, in_reasoning=in_reasoning)
            matcher = grammar.matcher(in_reasoning=in_reasoning)
            assert (matcher.accept_tokens(ids) and matcher.is_terminated()) == expected, vocabulary.decode(ids)
            count[expected] += 1
    assert min(count.values()) > 200, count


def test_calls_are_numbered_anew_in_every_turn(k3_small_compiler: Compiler) -> None:
    history = [{"role": "assistant", "tool_calls": [{}, {}]}]
    assert accepts(
        k3_small_compiler, compiled(k3_small_compiler, "a", messages=history), turn(call("a", 1), call("a", 2))
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        {},
        {"tool_choice": "required"},
        {"tool_choice": "none"},
        {"parallel_tool_calls": False, "tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
        ANSWER,
        {"structured_outputs": {"regex": "[ab]*"}},
    ],
    ids=["auto", "required", "none", "one", "named", "answer", "empty answer"],
)
def test_every_walk_is_a_turn(k3_real_compiler: Compiler, body: dict[str, Any]) -> None:
    names = ("get_weather", "get", 'a&"b', "查询 x")
    grammar = compiled(k3_real_compiler, *names, **body)
    choice = body.get("tool_choice", "auto")
    called = written = 0
    for seed in range(30):
        in_reasoning = bool(seed % 2)
        ids = walk(grammar.matcher(in_reasoning=in_reasoning), k3_real_compiler.vocabulary, seed)
        found = read(ids, k3_real_compiler.vocabulary, in_reasoning=in_reasoning)
        assert [index for _, index, _ in found.calls] == list(range(1, len(found.calls) + 1))
        assert all(name in names for name, _, _ in found.calls)
        called += bool(found.calls)
        written += bool(found.text)
        if choice == "none":
            assert not found.calls
        elif choice != "auto":
            assert found.calls and not found.text
        if isinstance(choice, dict):
            assert [name for name, _, _ in found.calls] == ["get_weather"]
        if "parallel_tool_calls" in body:
            assert len(found.calls) == 1
        if body is ANSWER:
            assert json.loads(found.text or b"0") in ({0} if found.calls else {1, 23})
        if "structured_outputs" in body:
            assert set(found.text) <= set(b"ab") and not (found.calls and found.text)
    assert called or choice == "none"
    assert written or choice not in ("auto", "none")


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
    assert markers(matcher, vocabulary) == {CLOSE}
    after = f"{CLOSE}argument{SEP}{CLOSE}call{SEP}{CLOSE}tools{SEP}{ENDED}"
    ids = [*ids_of(vocabulary, before), *vocabulary.encode(value), *ids_of(vocabulary, after)]
    matcher.reset()
    assert matcher.accept_tokens(ids)
    ((_, _, ((_, _, written),)),) = read(ids, vocabulary, in_reasoning=False).calls
    assert written == value.encode()


def test_a_fork_and_a_batch_within_a_joint_and_in_arguments(k3_small_compiler: Compiler) -> None:
    vocabulary = k3_small_compiler.vocabulary
    text = f'{CALLS}{OPEN}call tool="a" index="1"{SEP}{OPEN}argument key="k" type="string"{SEP}v{CLOSE}argument{SEP}'
    ids = ids_of(vocabulary, f"{text}{CLOSE}call{SEP}{CLOSE}tools{SEP}{ENDED}")
    grammar = compiled(k3_small_compiler, "a")
    matcher, masks = grammar.matcher(), []
    forks = []
    for token_id in ids:
        masks.append(allowed(matcher, vocabulary))
        forks.append(matcher.fork())
        assert matcher.accept_tokens([token_id])
    rows = allocate_bitmask(len(forks), vocabulary.size)
    assert not fill_bitmasks(forks, rows, range(len(forks)))
    assert [set(allowed_ids(row).tolist()) for row in rows] == masks
    for number, fork in enumerate(forks):
        assert fork.accept_tokens(ids[number:])
        assert fork.is_terminated()
    for left in range(len(ids) - 1, -1, -1):
        matcher.rollback(1)
        assert allowed(matcher, vocabulary) == masks[left]


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


def test_equal_positions_in_joints_are_one_object(k3_small_compiler: Compiler) -> None:
    """A device holds the masks of few constant sets, so requests of all kinds share them."""
    positions: set[int] = set()
    for body in ({}, {"tool_choice": "required"}, {"tool_choice": "none"}, {"parallel_tool_calls": False}, ANSWER):
        matcher = compiled(k3_small_compiler, "a", **body).matcher(in_reasoning=True)
        assert matcher.accept_tokens(ids_of(k3_small_compiler.vocabulary, CLOSE))
        positions.add(id(matcher.state.joint))
    assert len(positions) == 1
