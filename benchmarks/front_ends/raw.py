"""Reads calls from the token ids that a model wrote, not from a front end's answer. Shares no code with our parser."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from constrained_k2 import Vocabulary
from constrained_k2.evaluation.judge import decode_arguments, validator_of
from constrained_k2.evaluation.sample import Sample
from constrained_k2.formats.kimi_k2 import ARGUMENT_BEGIN, CALL_BEGIN, CALL_END

_MAX_SHOWN = 200


class RawCall(NamedTuple):
    """A call between its markers."""

    call_id: str
    arguments: str  # special tokens inside a string as their texts
    in_strings: int  # special tokens inside strings of the arguments
    is_whole: bool  # it has all markers


def raw_calls(ids: Sequence[int], vocabulary: Vocabulary) -> Iterator[RawCall]:
    """The calls of an answer. A special token inside a string, even a marker, is part of the string."""
    rest = iter(ids)
    for token_id in rest:
        if vocabulary.special_text(token_id) == CALL_BEGIN:
            call_id, _, marker = _until_special(rest, vocabulary, is_json=False)
            if marker != ARGUMENT_BEGIN:
                yield RawCall(call_id, "", 0, is_whole=False)
                continue
            arguments, in_strings, marker = _until_special(rest, vocabulary, is_json=True)
            yield RawCall(call_id, arguments, in_strings, is_whole=marker == CALL_END)


def _until_special(rest: Iterator[int], vocabulary: Vocabulary, *, is_json: bool) -> tuple[str, int, str]:
    """The text up to a special token, the number of those inside its JSON strings, and that token; "" at the end."""
    text, in_strings = b"", 0
    for token_id in rest:
        special = vocabulary.special_text(token_id)
        if special is not None and not (is_json and is_in_string(text)):
            return text.decode("utf-8", "replace"), in_strings, special
        in_strings += special is not None
        text += vocabulary.token_bytes(token_id)
    return text.decode("utf-8", "replace"), in_strings, ""


def is_in_string(text: bytes) -> bool:
    """True if JSON text ends inside a string."""
    inside = escaped = False
    for byte in text:
        if escaped:
            escaped = False
        elif byte == ord('"'):
            inside = not inside
        else:
            escaped = inside and byte == ord("\\")
    return inside


class Judged(NamedTuple):
    """Counts of one answer, or of several."""

    answers: int = 0
    calls: int = 0  # with all their markers
    undeclared: int = 0  # their function is not declared
    invalid: int = 0  # their arguments are not a JSON object, or not one that the schema accepts
    misnumbered: int = 0  # declared, but the id is not functions.NAME:INDEX with the expected index
    in_strings: int = 0  # special tokens inside strings
    cut: int = 0  # answers that max_tokens cut

    def __add__(self, other: tuple[object, ...]) -> "Judged":
        assert isinstance(other, Judged)
        return Judged(*(one + more for one, more in zip(self, other, strict=True)))


def judge_raw(sample: Sample, ids: Sequence[int], vocabulary: Vocabulary, *, cut: bool) -> tuple[Judged, list[str]]:
    """Judge one answer: its counts, and a line for each problem."""
    counts, problems = Judged(answers=1, cut=int(cut)), list[str]()
    for number, call in enumerate(raw_calls(ids, vocabulary), sample.first_index):
        counts += Judged(in_strings=call.in_strings, calls=int(call.is_whole))
        if call.in_strings:
            problems.append(f"special tokens in a string: {call.arguments[:_MAX_SHOWN]!r}")
        if not call.is_whole:
            continue
        name, _, index = call.call_id.removeprefix("functions.").rpartition(":")
        if not call.call_id.startswith("functions.") or name not in sample.tools:
            counts += Judged(undeclared=1)
            problems.append(f"undeclared: {call.call_id!r}")
            continue
        if index != str(number):
            counts += Judged(misnumbered=1)
            problems.append(f"index: {call.call_id!r}, not {number}")
        arguments, problem = decode_arguments(call.arguments)
        if arguments is not None:
            error = next(validator_of(sample.tools[name] or {"type": "object"}).iter_errors(arguments), None)
            problem = error.message if error else ""
        if problem:
            counts += Judged(invalid=1)
            problems.append(f"invalid: {call.arguments[:_MAX_SHOWN]!r}: {problem[:_MAX_SHOWN]}")
    return counts, problems
