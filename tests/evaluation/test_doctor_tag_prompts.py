"""The doctor's reader of tags, and its checks of prompts, on prompts that Kimi K3's own encoder rendered."""

import re
from typing import Any

from constrained_k2.evaluation.doctor.checks.tag_prompts import expected, judge_generation_prompt, judge_history
from constrained_k2.evaluation.doctor.checks.written import _written_in_tags
from constrained_k2.evaluation.doctor.prompt import Piece, opens_reasoning, stray
from constrained_k2.formats.kimi_k3 import CLOSE, OPEN, SEPARATOR, SPECIAL_TOKENS
from tests.kit.data import kimi_k3_prompts
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


def test_reading_the_opening_of_reasoning() -> None:
    text = f'{OPEN}message role="assistant"{SEPARATOR}{OPEN}think{SEPARATOR}'
    assert opens_reasoning(pieces(text)) and not opens_reasoning(pieces(f"{text}a"))


def test_stray_markers() -> None:
    assert stray(pieces(f'{OPEN}call tool="a" index="1"{SEPARATOR}{OPEN}json type="object"{SEPARATOR}raw')) == 0
    assert stray(pieces(f"{OPEN}{OPEN}{CLOSE}a{SEPARATOR}b{SEPARATOR}cd{OPEN}e")) == 3


def test_calls_as_sampled() -> None:
    turn = (
        f"{CLOSE}response{SEPARATOR}{OPEN}tools{SEPARATOR}"
        f'{OPEN}call tool="a&amp;b" index="2"{SEPARATOR}{OPEN}argument key="k&quot;" type="string"{SEPARATOR}'
        f'v {CLOSE}argument{SEPARATOR}{OPEN}argument key="n" type="number"{SEPARATOR}1e2{CLOSE}argument{SEPARATOR}'
        f"{CLOSE}call{SEPARATOR}"
    )
    cut = f'{OPEN}call tool="c" index="3"{SEPARATOR}{OPEN}json type="object"{SEPARATOR}raw'
    assert _written_in_tags(pieces(turn + cut)) == [("a&b", 'k" (string): v ', "n (number): 1e2")]
    raw = f"{cut}{CLOSE}json{SEPARATOR}{CLOSE}call{SEPARATOR}"
    assert _written_in_tags(pieces(turn + raw))[1:] == [("c", "raw")]


def test_prompts_of_nothing() -> None:
    assert judge_history([], [], "", "").verdict == "ok"
    assert judge_generation_prompt([], "").verdict == "fault"
