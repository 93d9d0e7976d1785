"""The doctor's reader of tags, and its checks of prompts, on prompts that Kimi K3's own encoder rendered."""

import re
from typing import Any

from constrained_k2.evaluation.doctor.checks.tag_prompts import expected, judge_generation_prompt, judge_history
from constrained_k2.evaluation.doctor.prompt import Piece
from constrained_k2.evaluation.doctor.tags import Argument, Call, Tag, calls, opens_reasoning, parts, stray
from constrained_k2.formats.kimi_k3 import CLOSE, OPEN, SEPARATOR, SPECIAL_TOKENS
from tests.data import kimi_k3_prompts
from tests.prompts.kimi_k3 import COPIED, body_of

_SPECIAL = re.compile("(" + "|".join(map(re.escape, SPECIAL_TOKENS.values())) + ")")


def pieces(text: str, plain: list[list[int]] | None = None) -> list[Piece]:
    """A text, split at its special tokens; those in ``plain`` places are ordinary text."""
    found: list[Piece] = []
    for part in _SPECIAL.split(text):
        start = sum(len(piece.text) for piece in found)
        special = part in SPECIAL_TOKENS.values() and [start, start + len(part)] not in (plain or [])
        if found and not special and not found[-1].special:
            found[-1] = Piece(found[-1].text + part)
        elif part:
            found.append(Piece(part, special))
    return found


def is_right(golden: dict[str, Any]) -> bool:
    """True if no check finds a fault in a prompt, but for one without a generation prompt."""
    prompt, due = pieces(golden["text"], golden.get("plain_spans")), expected(body_of(golden))
    has_end = golden["request"]["options"].get("add_generation_prompt") is not False
    assert judge_generation_prompt(prompt, "").verdict == ("ok" if has_end else "fault")
    return judge_history(prompt, due, "", "").verdict == "ok"


def test_no_fault_in_the_encoders_prompts() -> None:
    for golden in [*COPIED, *kimi_k3_prompts()]:
        if golden["name"] != "sglang_unresolvable_tool_run_is_left_alone":  # its result names no call
            assert is_right(golden), golden["name"]


def test_a_changed_text_is_found() -> None:
    changes = (
        ("assistant_with_reasoning_and_tool_calls", 'index="1"', 'index="3"'),
        ("assistant_with_reasoning_and_tool_calls", 'type="boolean"', 'type="string"'),
        ("assistant_raw_json_block", "not json at all", "{}"),
        ("sglang_tool_results_out_of_order_are_resorted", f"{SEPARATOR}r1", f"{SEPARATOR}r2"),
    )
    goldens = {golden["name"]: golden for golden in kimi_k3_prompts()}
    for name, was, becomes in changes:
        golden = goldens[name]
        assert was in golden["text"]
        assert not is_right(golden | {"text": golden["text"].replace(was, becomes)}), name


def test_reading_a_turn() -> None:
    turn = pieces(
        f"so{CLOSE}think{SEPARATOR}{OPEN}response{SEPARATOR}Hi{CLOSE}response{SEPARATOR}{OPEN}tools{SEPARATOR}"
        f'{OPEN}call tool="a&amp;b" index="2"{SEPARATOR}{OPEN}argument key="k&quot;" type="string"{SEPARATOR}'
        f"v[BOS]w{CLOSE}argument{SEPARATOR}{CLOSE}call{SEPARATOR}"
        f'{OPEN}call tool="c" index="3"{SEPARATOR}{OPEN}json type="object"{SEPARATOR}raw'
    )
    argument = Argument('k"', "string", "v[BOS]w", ["[BOS]"])
    assert calls(parts(turn)) == [Call("a&b", "2", [argument], is_closed=True), Call("c", "3", raw="raw")]
    assert stray(turn) == 0


def test_reading_the_opening_of_reasoning() -> None:
    text = f'{OPEN}message role="assistant"{SEPARATOR}{OPEN}think{SEPARATOR}'
    assert opens_reasoning(pieces(text)) and not opens_reasoning(pieces(f"{text}a"))


def test_reading_what_is_malformed() -> None:
    assert not calls(parts([])) and judge_history([], [], "", "").verdict == "ok"
    assert judge_generation_prompt([], "").verdict == "fault"
    assert stray(pieces(f"{OPEN}{OPEN}{CLOSE}a{SEPARATOR}b{SEPARATOR}cd{OPEN}e")) == 3
    assert parts(pieces(f"{OPEN}argument a{SEPARATOR}")) == [Tag(closes=False, name="argument", attributes={})]
    assert calls(parts(pieces(f"{CLOSE}call{SEPARATOR}{OPEN}argument{SEPARATOR}a"))) == []
