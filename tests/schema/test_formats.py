"""Formats: no invalid string is written, and every valid one where the format claims to be exact.

The table has strings of each format and close to it, written by hand from the RFCs. Those left out are valid and never
written, as the formats' notes say.
"""

import json
import random
import re
from collections import Counter
from functools import cache

import pytest

from constrained_k2.engines.protocol import ArgumentGrammar
from constrained_k2.schema.string_formats import FORMATS
from tests.kit.data import table
from tests.kit.format_oracles import ORACLES, is_date_time, is_time
from tests.kit.grammars import accepts, compiled, walk

TABLE = table(__file__)
EXACT = sorted(name for name, entry in FORMATS.items() if not entry.left_out)


@cache
def grammar_of(name: str) -> ArgumentGrammar:
    return compiled({"type": "string", "format": name})


def is_written(name: str, text: str) -> bool:
    return accepts(grammar_of(name), text)


def mutants(name: str, count: int) -> list[str]:
    """Valid strings with one or two changes, made of characters of the format and of others."""
    chance = random.Random(name)
    strings = TABLE[name]["valid"] + TABLE[name]["left_out"]
    others = '0159afAFzZ.:-/@[]{}()%"\\ \n~*^$|?+=\u00e9\u4e2d\u0663\u202e\U0001f600\x00'  # DEL is written as its escape only
    pool = [*"".join(strings), *others]
    found = []
    for _ in range(count):
        text = chance.choice(strings)
        for _ in range(chance.choice((1, 1, 2))):
            at, length = chance.randint(0, len(text)), chance.choice((0, 1, 1, 2))
            text = text[:at] + "".join(chance.choices(pool, k=chance.choice((0, 1, 1, 2)))) + text[at + length :]
        found.append(text)
    return found


@pytest.mark.parametrize("name", FORMATS)
def test_table(name: str) -> None:
    valid, invalid, left_out = (TABLE[name][kind] for kind in ("valid", "invalid", "left_out"))
    assert [text for text in [*valid, *left_out, *invalid] if ORACLES[name](text)] == [*valid, *left_out]
    assert [text for text in [*valid, *left_out, *invalid] if is_written(name, text)] == valid
    assert bool(FORMATS[name].left_out) == bool(left_out)
    without_the_first = compiled({"type": "string", "format": name, "not": {"const": valid[0]}})  # written another way
    assert [text for text in [*valid, *invalid] if accepts(without_the_first, text)] == valid[1:]


@pytest.mark.parametrize("name", FORMATS)
def test_mutants(name: str) -> None:
    verdicts: Counter[bool] = Counter()
    for text in mutants(name, 1_500):
        valid, written = ORACLES[name](text), is_written(name, text)
        verdicts[written] += 1
        assert valid or not written, text
        if name in EXACT:
            assert written or not valid, text
        in_python = all(re.fullmatch(pattern[1:-1], text) for pattern in FORMATS[name].patterns)
        assert in_python == written, text  # the engine reads the pattern as it is meant
    assert min(verdicts.values()) > 20


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_random_strings(name: str) -> None:
    ended = 0
    for seed in range(60):
        text = walk(grammar_of(name), seed)
        if text is not None:
            ended += 1
            assert ORACLES[name](json.loads(text)), text
    assert ended >= 50


@pytest.mark.parametrize(
    "day", ["", "1998-12-31", "1999-01-01", "2015-06-30", "2015-07-01", "1998-12-30", "2015-12-31"]
)
def test_leap_seconds_of_every_offset(day: str) -> None:
    name, judge = ("date-time", is_date_time) if day else ("time", is_time)
    patterns = [re.compile(pattern) for pattern in FORMATS[name].patterns]
    counts: Counter[bool] = Counter()
    for offset in range(-1439, 1440):
        for wrong in (0, 1, -1, 60, -60):
            hour, minute = divmod((23 * 60 + 59 + offset + wrong) % 1440, 60)
            shift = f"{'-' if offset < 0 else '+'}{abs(offset) // 60:02}:{abs(offset) % 60:02}"
            text = f"{day + 'T' if day else ''}{hour:02}:{minute:02}:60{shift}"
            written = all(pattern.search(text) for pattern in patterns)
            assert written == judge(text), text
            counts[written] += 1
    assert counts[False] >= 4 * 2879
    days = {"": 2879, "1998-12-31": 1440, "1999-01-01": 1439, "2015-06-30": 1440, "2015-07-01": 1439}
    assert counts[True] == days.get(day, 0)


def test_labels_fit_into_63_octets() -> None:
    """The worst A-label of any label that is written, whatever its letters: digits of Punycode, RFC 3492."""

    def digits(delta: int, bias: int) -> int:
        count, location = 1, 36
        while delta >= (threshold := min(max(location - bias, 1), 26)):
            delta, count, location = (delta - threshold) // (36 - threshold), count + 1, location + 36
        return count

    def most_digits(delta: int) -> int:
        return max(digits(delta, bias) for bias in range(216))

    least: dict[int, int] = {}  # number of digits -> the least delta that may need them
    for wanted in range(1, 7):
        low, high = 0, 1 << 22
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if most_digits(middle) >= wanted else (middle + 1, high)
        least[wanted] = low
    assert most_digits(12 * 0xD7A3) <= max(least)
    for length, last in ((15, 0x97F), (12, 0xD7A3)):
        for beyond in range(1, length + 1):
            ascii_letters = length - beyond
            reached = {0: 0}  # number of digits -> the least distance of code points that may lead there
            for location in range(ascii_letters, length):
                following: dict[int, int] = {}
                for written, used in reached.items():
                    for more, delta in least.items():
                        distance = used + max(0, -((location - delta) // (location + 1)))
                        if distance <= last - 0x80:
                            following[written + more] = min(distance, following.get(written + more, distance))
                reached = following
            assert len("xn--") + ascii_letters + bool(ascii_letters) + max(reached) <= 62


def test_beside_other_keywords() -> None:
    grammar = compiled({"type": "string", "format": "hostname", "maxLength": 5, "not": {"enum": ["a.b"]}})
    assert accepts(grammar, "c.d") and not accepts(grammar, "a.b") and not accepts(grammar, "abc.de")
    grammar = compiled({"format": "time", "enum": ["23:59:60Z", "22:59:60Z", 7]})
    assert accepts(grammar, "23:59:60Z") and accepts(grammar, 7) and not accepts(grammar, "22:59:60Z")
    grammar = compiled({"type": "object", "propertyNames": {"format": "regex"}, "minProperties": 1})
    assert accepts(grammar, {"^a+$": 1}) and not accepts(grammar, {"a**": 1})


def test_omissions_are_reported() -> None:
    (use,) = grammar_of("hostname").coverage.narrowed
    assert use.pointer == "#/format" and "xn--" in use.reason
    assert not grammar_of("time").coverage.narrowed
