"""Kimi K3's turns at the tolerant level: what unconstrained models write."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from constrained_k2 import ToolCallParser, Vocabulary, parse_completion
from constrained_k2.formats.kimi_k3 import KIMI_K3
from constrained_k2.parsing import CutCall
from constrained_k2.parsing.events import (
    RECOVERIES,
    CallFinished,
    CallStarted,
    ContentDelta,
    RecoveryUsed,
)
from constrained_k2.request.spec import Tool
from tests.kit.k3_turns import CLOSE, END, OPEN, SEP
from tests.parsing.transcripts import ids_of_text, table

BYTES = Vocabulary.of_bytes(KIMI_K3)
NOT_IN_XTML = {"bare_id", "text_in_section"}
TOOLS = [Tool("f"), Tool("g")]
THOUGHT, RESPONSE, RESPONDED = f"{CLOSE}think{SEP}", f"{OPEN}response{SEP}", f"{CLOSE}response{SEP}"
SECTION, SECTION_END, CALL_END = f"{OPEN}tools{SEP}", f"{CLOSE}tools{SEP}", f"{CLOSE}call{SEP}"
ENDED = f"{CLOSE}message{SEP}{END}"


def argument(attributes: str, value: str) -> str:
    return f"{OPEN}argument {attributes}{SEP}{value}{CLOSE}argument{SEP}"


A = argument('key="a" type="number"', "1")
B = argument('key="b" type="number"', "1")
CALL = f'{OPEN}call tool="f" index="1"{SEP}{A}{CALL_END}'


def one(arguments: str) -> str:
    """A turn of one call with these arguments."""
    return f'{RESPONDED}{SECTION}{OPEN}call tool="f" index="1"{SEP}{arguments}{CALL_END}{SECTION_END}{ENDED}'


def spelled(text: str) -> str:
    """The text with its markers written as ordinary tokens."""
    return text.replace("<|", "<~|")


QUOTED = f"{RESPONDED}{SECTION}{CALL}{SECTION_END}"


@dataclass
class Row:
    """A turn, and what it is read as."""

    name: str
    text: str
    calls: list[tuple[str, int, str, tuple[str, ...]]] = field(default_factory=list)
    content: str = ""
    reasoning: str = ""
    in_reasoning: bool = False
    cut: tuple[CutCall, ...] = ()


def called(*recoveries: str, arguments: str = '{"a": 1}', name: str = "f", index: int = 1) -> Any:
    return [(name, index, arguments, recoveries)]


ROWS = [
    Row("as it should be", f"hm{THOUGHT}{RESPONSE}hi{RESPONDED}{SECTION}{CALL}{SECTION_END}{ENDED}", called(),
        "hi", "hm", in_reasoning=True),
    Row("no end of thinking", f"hm{RESPONSE}hi{RESPONDED}{ENDED}", [], "hi", "hm", in_reasoning=True),
    Row("no end of thinking, calls", f"hm{SECTION}{CALL}{SECTION_END}{ENDED}", called("in_reasoning"),
        "", "hm", in_reasoning=True),
    Row("no end of thinking, a call alone", f"hm{CALL}{ENDED}", called("in_reasoning", "no_section"),
        "", "hm", in_reasoning=True),
    Row("thinking to the end", f"hm{CLOSE}message{SEP}{END}", [], "", "hm", in_reasoning=True),
    Row("no response", f"hm{THOUGHT}{SECTION}{CALL}{SECTION_END}{ENDED}", called("no_response"), "", "hm",
        in_reasoning=True),
    Row("no response tag", f"hm{THOUGHT}hi{ENDED}", [], "hi", "hm", in_reasoning=True),
    Row("response not closed", f"hi{SECTION}{CALL}{SECTION_END}{ENDED}", called("no_response"), "hi"),
    Row("thinking again", f"{OPEN}think{SEP}hm{THOUGHT}{RESPONSE}hi{RESPONDED}{ENDED}", [], "hi", "hm"),
    Row("no section", f"hi{RESPONDED}{CALL}{ENDED}", called("no_section"), "hi"),
    Row("no end of the section", f"hi{RESPONDED}{SECTION}{CALL}{ENDED}", called(), "hi"),
    Row("text after the calls", f"{RESPONDED}{SECTION}{CALL}{SECTION_END}bye{ENDED}", called(), "bye"),
    Row("text between calls", f"{RESPONDED}{SECTION}{CALL}\nso {CALL}{SECTION_END}", called() + called(), "\nso "),
    Row("blanks between blocks", f"hm{THOUGHT}\n{RESPONSE}hi{RESPONDED}\n\n{SECTION}\n{CALL}\n{SECTION_END}\n{ENDED}",
        called("blanks"), "hi", "hm", in_reasoning=True),
    Row("blanks in tags", f'{CLOSE} response {SEP}{SECTION}{OPEN} call tool="f" index="1" {SEP}{A}{CALL_END}',
        called("blanks")),
    Row("blanks around values", one(f"\n{A}\n{B} "),
        called("blanks", arguments='{"a": 1, "b": 1}')),
    Row("attributes of a call in another order", f'{RESPONDED}{SECTION}{OPEN}call index="2" tool="f"{SEP}{CALL_END}',
        called("attributes", arguments="{}", index=2)),
    Row("no index", f'{RESPONDED}{SECTION}{CALL}{OPEN}call tool="g"{SEP}{CALL_END}',
        called() + called("attributes", arguments="{}", name="g", index=2)),
    Row("an index that is not a number", f'{RESPONDED}{SECTION}{OPEN}call tool="g" index="x"{SEP}{CALL_END}',
        called("attributes", arguments="{}", name="g")),
    Row("an ampersand that is not escaped", f'{RESPONDED}{SECTION}{OPEN}call tool="a&b" index="1"{SEP}{CALL_END}',
        called("attributes", arguments="{}", name="a&b")),
    Row("attributes of an argument in another order", one(argument('type="number" key="a"', "1")),
        called("attributes")),
    Row("an attribute that the format lacks", one(argument('key="a" type="number" x="y"', "1")), called("attributes")),
    Row("no type", one(argument('key="a"', "1")), called("no_type", arguments='{"a": "1"}')),
    Row("integer", one(argument('key="a" type="integer"', "1")), called("value_type")),
    Row("another type", one(argument('key="a" type="string"', "1") + argument('key="b" type="object"', "[]")),
        called("value_type", arguments='{"a": "1", "b": []}')),
    Row("a value that is not JSON", one(argument('key="a" type="number"', '1, "x": 2')),
        called("value_type", arguments='{"a": "1, \\"x\\": 2"}')),
    Row("Python's literals", one(argument('key="a" type="boolean"', "True")),
        called("python_literals", arguments='{"a": true}')),
    Row("single quotes", one(argument('key="a" type="object"', "{'b': 1,}")),
        called("single_quotes", "trailing_comma", arguments='{"a": {"b": 1}}')),
    Row("braces missing", one(argument('key="a" type="array"', "[{")),
        called("missing_braces", arguments='{"a": [{}]}')),
    Row("a repeated key", one(A + argument('key="a" type="number"', "2")),
        called("repeated_key", arguments='{"a": 1, "a": 2}')),
    Row("a JSON block", one(f'{OPEN}json type="object"{SEP}{{"a": 1}}{CLOSE}json{SEP}'), called()),
    Row("a JSON block that is not JSON", one(f'{OPEN}json type="object"{SEP}{{"a": 1,}}{CLOSE}json{SEP}'),
        called("trailing_comma")),
    Row("a JSON block without text", one(f'{OPEN}json type="object"{SEP}{CLOSE}json{SEP}'),
        called("no_arguments", arguments="{}")),
    Row("a newline in a string of an object", one(argument('key="a" type="object"', '{"b": "\n"}')),
        called("control_characters", arguments='{"a": {"b": "\\n"}}')),
    Row("a call that is not closed", f"{RESPONDED}{SECTION}{CALL.removesuffix(CALL_END)}{CALL}{SECTION_END}{ENDED}",
        called("no_call_end") + called()),
    Row("a value that is not closed", one(A.removesuffix(f"{CLOSE}argument{SEP}")),
        [], cut=(CutCall("functions.f:1", '{"a": 1'),)),
    Row("a section that ends in a call", f"{RESPONDED}{SECTION}{CALL.removesuffix(CALL_END)}{SECTION_END}{ENDED}",
        called("no_call_end")),
    Row("a message that ends in a call", f"{RESPONDED}{SECTION}{CALL.removesuffix(CALL_END)}{ENDED}", called("no_call_end")),
    Row("a turn that ends in a call", f"{RESPONDED}{SECTION}{CALL.removesuffix(CALL_END)}{END}", called("no_call_end")),
    Row("a JSON block, then the end of the turn",
        f'{RESPONDED}{SECTION}{OPEN}call tool="f" index="1"{SEP}{OPEN}json type="object"{SEP}{{"a": 1}}{CLOSE}json{SEP}{END}',
        called("no_call_end")),
    Row("a JSON block that is no object, then the end of the turn",
        f'{RESPONDED}{SECTION}{OPEN}call tool="f" index="1"{SEP}{OPEN}json type="object"{SEP}[1]{CLOSE}json{SEP}{END}',
        [], cut=(CutCall("functions.f:1", "[1]"),)),
    Row("a section that ends in a call without arguments", f'{RESPONDED}{SECTION}{OPEN}call tool="f" index="1"{SEP}{SECTION_END}',
        [], cut=(CutCall("functions.f:1"),)),
    Row("spelled calls that are not closed",
        f"hi{spelled(RESPONDED + SECTION + CALL.removesuffix(CALL_END) + CALL.removesuffix(CALL_END) + SECTION_END)}{END}",
        called("spelled_markers", "no_call_end") * 2, "hi"),
    Row("a call without a name", f"{RESPONDED}{SECTION}{OPEN}call{SEP}{CALL_END}{CALL}",
        called(), f"{OPEN}call{SEP}{CALL_END}"),
    Row("cut in a tag", f'{RESPONDED}{SECTION}{OPEN}call tool="', [], cut=(CutCall('call tool="'),)),
    Row("cut in the end of the response", f"hi{CLOSE}resp", [], "hi"),
    Row("a tag that does not exist", f"hi{OPEN}foo{SEP}!", [], f"hi{OPEN}foo{SEP}!"),
    Row("all is spelled", f"hi{spelled(QUOTED)}{spelled(CLOSE)}message{spelled(SEP)}{END}",
        called("spelled_markers"), "hi"),
    Row("a spelled section", f"{RESPONDED}{spelled(SECTION + CALL)}\n{spelled(CALL + SECTION_END)}{ENDED}",
        called("spelled_markers") + called("spelled_markers", "blanks")),
    Row("a spelled section at once", f"{spelled(SECTION)}\n{spelled(CALL)}", called("no_response", "blanks", "spelled_markers")),
    Row("a spelled value", spelled(QUOTED.replace(A, argument('key="b" type="string"', "<|x"))),
        called("spelled_markers", arguments='{"b": "<|x"}')),
    Row("a spelled call that is cut off", f"hi{spelled(RESPONDED + SECTION + CALL.removesuffix(CALL_END))}",
        [], "hi", cut=(CutCall("functions.f:1", '{"a": 1'),)),
    Row("a spelled call behind text", f"so {spelled(SECTION + CALL)}", [], f"so {SECTION}{CALL}"),
    Row("a spelled call without a section", f"{RESPONDED}{spelled(CALL)}", [], CALL),
    Row("a spelled call of an unknown tool", spelled(QUOTED.replace('"f"', '"h"')), [], QUOTED.replace('"f"', '"h"')),
    Row("quoted code", f"I write `{spelled(QUOTED)}`.", [], f"I write `{QUOTED}`."),
    Row("a quoted block", f"```\nhi{spelled(QUOTED)}\n```", [], f"```\nhi{QUOTED}\n```"),
    Row("a spelled call in the reasoning", f"hm{spelled(QUOTED)}", [], "", f"hm{QUOTED}", in_reasoning=True),
    Row("markers alone", spelled(f"The end is {RESPONDED}, then {SECTION}."), [], f"The end is {RESPONDED}, then {SECTION}."),
    Row("a value that spells markers", one(argument('key="a" type="string"', spelled(QUOTED))),
        called(arguments=json.dumps({"a": QUOTED}))),
    Row("a message of another role", f'hi{RESPONDED}{OPEN}message role="user"{SEP}x', [],
        f'hi{OPEN}message role="user"{SEP}x'),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_the_table(row: Row) -> None:
    ids = ids_of_text(row.text, BYTES)
    found = parse_completion(ids, BYTES, level="tolerant", tools=TOOLS, in_reasoning=row.in_reasoning)
    calls = [(call.name, call.index, call.arguments, call.recoveries) for call in found.tool_calls]
    assert calls == row.calls
    assert (found.content, found.reasoning, found.cut_calls) == (row.content, row.reasoning, row.cut)
    assert not found.malformed
    for call in found.tool_calls:
        assert isinstance(json.loads(call.arguments), dict)


def test_the_tables_use_every_recovery() -> None:
    kimi_k2 = {recovery for row in table() for call in row["calls"] for recovery in call[2]}
    kimi_k3 = {recovery for row in ROWS for call in row.calls for recovery in call[3]}
    assert kimi_k2 | kimi_k3 == set(RECOVERIES)
    assert kimi_k2 - kimi_k3 == NOT_IN_XTML


def test_the_written_arguments_stay_beside_the_recovered_ones() -> None:
    value = argument('key="a" type="object"', "{'b': 1}")
    for written, changed in ((value, True), (A, False)):
        (call,) = parse_completion(ids_of_text(one(written), BYTES), BYTES, level="tolerant").tool_calls
        assert call.written == (written if changed else None)


def test_strings_are_shown_as_they_come_and_recoveries_with_their_call() -> None:
    parser = ToolCallParser(BYTES, level="tolerant")
    assert parser.feed(ids_of_text(f"hm{CALL.partition(SEP)[0]}", BYTES))[-1] == ContentDelta("m")
    assert parser.feed(ids_of_text(SEP, BYTES)) == [CallStarted(0, "f", 1), RecoveryUsed(0, "no_section")]
    parser.feed(ids_of_text(f'{OPEN}argument key="a" type="string"{SEP}x', BYTES))
    assert all(parser.feed([byte]) for byte in b"yz <|close|>argument<|sep|>")
    assert parser.feed(ids_of_text(f"{CLOSE}argument{SEP}{CALL_END}", BYTES))[-1] == CallFinished(0)
