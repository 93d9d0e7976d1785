"""Drafts of values that the prompt holds: which value, where it ends, and what a hostile prompt costs."""

import json
import random
from typing import Any

import pytest

from constrained_k2 import Compiler, Vocabulary
from constrained_k2.formats.kimi_k2 import ASSISTANT, MIDDLE, SYSTEM, TURN_END, USER
from constrained_k2.prompts.xtml.prompt import XtmlRenderer
from constrained_k2.turn.drafts import prompt_text
from constrained_k2.turn.drafts.drafter import Drafter
from constrained_k2.turn.drafts.prompt_text import PromptText
from constrained_k2.turn.matcher import ToolCallMatcher
from tests.drafts.test_drafter import CALLS, spec, steps_of, turn
from tests.kit.tools import tool
from tests.kit.turns import call_start, ids_of, matcher_of, steps, towards_the_end
from tests.kit.walks import row_of, walk

PROPERTIES = {
    "city": {"type": "string"},
    "to": {"type": "string", "pattern": "^[^@ ]+@[^@ ]+$"},
    "day": {"type": "string", "format": "date"},
    "path": {"type": "string"},
    "order_id": {"type": "string"},
    "count": {"type": "integer"},
    "amount": {"type": "number"},
    "level": {"enum": ["minor", "major"]},
    "note": {"type": "string"},
    "lines": {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string"}}, "required": ["sku"]}},
}  # fmt: skip
DECLARED = f'{SYSTEM}tool_declare{MIDDLE}[{{"name": "declared", "parameters": {{"note": "not a value"}}}}]{TURN_END}'
OPENED = f"{ASSISTANT}assistant{MIDDLE}"


def user(text: str) -> str:
    return f"{USER}user{MIDDLE}{text}{TURN_END}"


def result(text: str) -> str:
    return f"{SYSTEM}tool{MIDDLE}## Return of functions.f:0\n{text}{TURN_END}"


def encoded(prompt: str, vocabulary: Vocabulary) -> list[int]:
    return ids_of(vocabulary, f"{DECLARED}{prompt}{OPENED}")


def grammar_of(compiler: Compiler, *required: str) -> ToolCallMatcher:
    schema = {"type": "object", "properties": PROPERTIES, "required": list(required)}
    return matcher_of(compiler, {"tools": [tool("f", schema)], "tool_choice": "required"})


def drafted(compiler: Compiler, prompt: str, arguments: str, *required: str, limit: int = 64) -> str:
    """The draft behind the beginning of a call's arguments."""
    vocabulary, matcher = compiler.vocabulary, grammar_of(compiler, *required)
    assert matcher.accept_tokens([*call_start(vocabulary), *vocabulary.encode(arguments)])
    return vocabulary.decode(Drafter(matcher, encoded(prompt, vocabulary)).draft(limit))


@pytest.mark.parametrize(
    ("prompt", "arguments", "expected"),
    [
        (user("What is the weather in Novi Sad for two days?"), '{"city": "Nov', 'i Sad"'),
        (user("Where can I eat in Old Novi Sad?"), '{"city": "vi', None),  # within a word
        (user("Weather in Oslo? No, in Osaka."), '{"city": "Osl', 'o"'),
        (user("Look into src/core/main.py, please."), '{"path": "src/co', 're/main.py"'),
        (user('The note is "call Ada, then Bo (or Cy)", no more.'), '{"note": "call', ' Ada, then Bo (or Cy)"'),
        (user('Write down: say "hi" to C:\\temp\\x of Bo'), '{"path": "C:\\\\te', 'mp\\\\x"'),
        (user("The subject is spring forecast, with low priority."), '{"note": "spr', 'ing forecast"'),
        (user("Convert 86.25 euros."), '{"amount": 86', ".25}"),
        (user("Convert 186 euros."), '{"amount": 86', None),
        (user("Zürich, naïve café, 東京駅 and 日本"), '{"city": "東京', '駅"'),
        (user("在北京工作。"), '{"city": "北', '京工作"'),
        (f"{SYSTEM}system{MIDDLE}The folder is /srv/data/live.{TURN_END}" + user("Go"), '{"path": "/srv', '/data/live"'),
        ("", '{"city": "Nov', None),
    ],
)  # fmt: skip
def test_a_value_goes_on_as_in_the_prompt(
    compiler: Compiler, prompt: str, arguments: str, expected: str | None
) -> None:
    key = arguments[2:].partition('"')[0]
    found = drafted(compiler, prompt, arguments, key)
    assert found.startswith(expected) if expected else not found.strip(' "'), found


@pytest.mark.parametrize(
    ("prompt", "key", "expected"),
    [
        (user("What is the weather in Novi Sad for two days?"), "city", '"Novi Sad"}'),
        (user("Find Thai food in Oslo."), "city", '"Thai"}'),  # the first name: a sentence begins with none
        (user("Write to Ada, that is ada@post.example, and to Bo."), "to", '"ada@post.example"}'),
        (user("Book Novi Sad from 2026-03-07 for 2 nights."), "day", '"2026-03-07"}'),
        (user("Book Novi Sad from 2026-03-07 for 12 nights."), "count", "12}"),
        (user("It is a Major problem."), "level", '"major"}'),
        (user("Open `docs/drafts.md` by Ada."), "path", '"docs/drafts.md"}'),
        (result('{"order_id": "B-77", "count": 3}'), "order_id", '"B-77"}'),
        (result('{"order_id": "B-77", "count": 3}'), "count", "3}"),
        (result('{"customer": "A-1", "order_id": "B-77"}') + user("Cancel it."), "order_id", '"B-77"}'),
        (result('{"order_id": "B-77"}') + user("Now cancel C-12."), "order_id", '"C-12"}'),  # its shape, and newer
        (user("Hello there."), "note", '"'),  # the tools' declarations hold no values
        (user("Send it."), "count", ""),
    ],
)
def test_a_value_begins_as_the_prompt_tells(compiler: Compiler, prompt: str, key: str, expected: str) -> None:
    found = drafted(compiler, prompt, f'{{"{key}":', key).strip()
    assert found.startswith(expected) if expected else not found, found
    if expected == '"':
        assert found == '"'


def test_a_draft_goes_on_behind_a_value(compiler: Compiler) -> None:
    prompt = user("Order 14 x Y-233, and 2 x Z-1, to ada@post.example.")
    found = drafted(compiler, prompt, '{"order_id": "Y-2', "order_id", "count", "to", "lines")
    assert found.startswith('33", "to": "ada@post.example", "count": 14, "lines": [{"sku": "Z-1"}]}')
    assert found.endswith(compiler.vocabulary.special_text(compiler.vocabulary.format.turn_end) or "")


def test_a_long_text_goes_on_from_its_last_characters(compiler: Compiler) -> None:
    text = "".join(f"{number} of the lines, said (twice). " for number in range(300))
    begun = text[: text.index("212")]
    assert len(begun) > 4096  # more than is stored of a string
    found = drafted(compiler, user(f"Copy: {text}"), '{"note": "' + begun, "note")
    assert found.startswith("212 of the lines, said (twice). 213"[: len(found)]) and len(found) > 30


@pytest.mark.parametrize(
    ("has_prompt", "seed"), [*((True, seed) for seed in range(6)), *((False, seed) for seed in range(12))]
)
@pytest.mark.parametrize(
    "which", ["small_compiler", pytest.param("real_compiler", marks=pytest.mark.slow), "k3_small_compiler"]
)
def test_drafts_are_legal_and_leave_no_trace(
    which: str, has_prompt: bool, seed: int, request: pytest.FixtureRequest
) -> None:
    """A prompt holds the values that are written, in each spelling of a prompt."""
    compiler: Compiler = request.getfixturevalue(which)
    grammar = compiler.compile(spec())
    if which.startswith("k3"):
        chance = random.Random(seed)
        whole = steps(grammar.matcher(), chance, prefer=towards_the_end(compiler.vocabulary, chance))
    else:
        whole = walk(grammar.matcher(), compiler.vocabulary, seed)
    matcher, written = grammar.matcher(), whole[: 400 if has_prompt else 600]
    drafter = Drafter(matcher, [*written[::-1], *written] if has_prompt else ())
    for number, token_id in enumerate(written):
        before, limit = row_of(matcher), number % 7
        drafts = drafter.draft(limit)
        assert (before == row_of(matcher)).all() and len(drafts) <= limit
        assert matcher.fork().accept_tokens(drafts)
        assert matcher.accept_tokens([token_id])
    assert len(written) < len(whole) or not drafter.draft(6)


def test_kimi_k3_takes_values_from_messages_and_earlier_calls(k3_small_compiler: Compiler) -> None:
    vocabulary = k3_small_compiler.vocabulary
    called = [
        {"id": f"{name}:{number}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for number, (name, arguments) in enumerate(CALLS)
    ]
    results: list[dict[str, Any]] = [{"role": "tool", "tool_call_id": call["id"], "content": "ok"} for call in called]
    again = {"messages": [{"role": "user", "content": "Go"}, {"role": "assistant", "content": "", "tool_calls": called},
                          *results, {"role": "user", "content": "Do it all once more."}]}  # fmt: skip
    prompt = XtmlRenderer(vocabulary).render(again, repair=False).ids
    grammar = k3_small_compiler.compile(spec())
    assert steps_of(grammar.matcher(), turn(vocabulary), 16, prompt) < 0.75 * steps_of(
        grammar.matcher(), turn(vocabulary), 16
    )


HOSTILE = ("a", '"', "a:", "a'", "A ", '"a":"', '"a": "x" ', "1:", "\\", "@", " ", "\n", "(", "## Return of ", "é")


@pytest.mark.parametrize("text", HOSTILE)
def test_of_a_hostile_prompt_a_bounded_part_is_read(small_compiler: Compiler, text: str) -> None:
    vocabulary = small_compiler.vocabulary
    opened = encoded(user("x y"), vocabulary)[: -len(vocabulary.encode("assistant")) - 2]
    ids = vocabulary.encode(text * 400)
    for prompt in ([*opened, *ids * (200_000 // len(ids))], [*opened, *ids]):
        found = PromptText(prompt, vocabulary)
        assert len(found.text) <= prompt_text.MAX_BYTES and len(found.spans) <= prompt_text.MAX_SPANS
        matcher = grammar_of(small_compiler, "city", "note", "count")
        drafter = Drafter(matcher, prompt)
        for arguments in ('{"city": "', text[:1].replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") * 40):
            before = [] if matcher.num_tokens else call_start(vocabulary)
            assert matcher.accept_tokens(before + vocabulary.encode(arguments))
            assert matcher.fork().accept_tokens(drafter.draft(8))


@pytest.mark.parametrize("ids", [[0], [2**40], [-5], [10**6, 1]], ids=repr)
def test_any_ids_are_read(small_compiler: Compiler, ids: list[int]) -> None:
    """A server that extends the vocabulary may give ids that it does not have."""
    assert Drafter(grammar_of(small_compiler, "city"), ids * 3).draft(64)
