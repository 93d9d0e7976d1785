"""Shortest completions of texts of a client's grammar."""

import pytest

from constrained_k2.grammar.lark.text_grammar import Terminal, text_grammar
from constrained_k2.grammar.lark.text_state import TextState, begun_text
from constrained_k2.grammar.spelling import JSON

ESCAPED = frozenset(map(chr, JSON.escapes))
NESTED = 'start: "(" start* ")" | /[a-z]+/ ";"'
CALC = """
start: sum
sum: sum ("+" | "-") product | product
product: product "*" atom | atom
atom: /[0-9]+/ | "(" sum ")" | "f(" [sum ("," sum)*] ")"
%ignore /[ ]+/
"""


def state(definition: str, text: str = "", escaped: frozenset[str] = frozenset()) -> TextState:
    grammar = text_grammar("lark", definition)
    assert grammar is not None
    return begun_text(grammar, escaped).after(text)


@pytest.mark.parametrize(
    ("definition", "text", "completion"),
    [
        (NESTED, "", "()"), (NESTED, "((ab", ";))"), (NESTED, "((ab;", "))"), (NESTED, "()", ""),
        ('start: (/[a-z]+/ "\\n")+ "END"', "ab\ncd", "\nEND"), ('start: "\\"" /[a-z ]*/ "\\""', '"a b', '"'),
        ('start: x~2..4 Y\nx: "a" | "bc"\nY: /[0-9]{3}/', "ab", "c000"), ('start: ["ab" "c"] "d"?', "a", "bc"),
        (CALC, "1 + (2 * f(3, (4", ")))"), (CALC, "1 -", "0"), (CALC, "(1+2)", ""),
        ('start: s ";"\ns: s s | "a"', "a" * 500, ";"),  # exponentially many parses, which share one stack
        ('start: word+ ";"\nword: /[a-z]/+', "a" * 500, ";"),
        ('start: "a" start | "b"', "a" * 5000, "b"),
        ("start: a\n" + "\n".join(f'a{"b" * n}: a{"b" * n}b a{"b" * n}b' for n in range(40)) + f'\na{"b" * 40}: "x"?', "x", ""),
        ('start: /[a-z]+/ ("b" | "!!")', "ab", "!!"),  # "b" would become part of the first lexeme
        ("start: /[^)]+/ /.+/", "(ab", ")"),
        ('start: /\\w+/ "."', "a\u0301", "."),  # a letter, though not to Python
        ('start: /select/i "."', "\u017felec", "T."),
        ('start: /.+/ "\\n"', "ab\\", "\n"), ('start: /"([^"\\\\]|\\\\.)*"/', '"a\\', 'a"'),
    ],
)  # fmt: skip
def test_the_shortest_completion(definition: str, text: str, completion: str) -> None:
    assert next(state(definition, text).completions()) == (completion, True)


def test_a_long_completion_comes_in_parts() -> None:
    assert next(state('start: "a" start "bc" | "."', "a" * 100).completions()) == ("." + "bc" * 12, False)


@pytest.mark.parametrize("count", [10, 40])
def test_completions_take_few_steps(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """A mask waits for them. Without a bound, the search alone took half a second."""
    alternatives = (rf'/\w*[a-{chr(98 + number % 24)}]\w{{{number % 6}}}.*/ ";{number}"' for number in range(count))
    text, steps, after = state(f"start: {' | '.join(alternatives)}", "abc" * 9), [0], Terminal.after

    def counted(self: Terminal, state: int, character: str) -> int | None:
        steps[0] += 1
        return after(self, state, character)

    monkeypatch.setattr(Terminal, "after", counted)
    assert list(text.completions()) and steps[0] < 3000


def test_inside_json_a_lexeme_may_end_around_an_escaped_character() -> None:
    definition = 'start: /[^;]+/ "\\"!"'
    assert [text for text, _ in state(definition, 'ab"', ESCAPED).completions()][:2] == ["!", '"!']
    assert ("!", True) not in state(definition, 'ab"').completions()


def test_the_rules_that_are_open_are_counted() -> None:
    assert [state(NESTED, "(" * count + "a").depth for count in (0, 1, 7)] == [0, 1, 7]
    assert state('start: "a" start | "b"', "a" * 50).depth <= 1  # only the innermost rule needs more text


@pytest.mark.parametrize(
    ("kind", "definition"),
    [
        ("lark", 'start: ("a"~0..90)~0..90'),
        ("lark", "start: " + " ".join(f"/a{{{count}}}/" for count in range(300))),
        ("lark", "start: %json {}"),
        ("lark", "start: a"),
        ("regex", "(?=a)b"),
        ("regex", "("),
    ],
)
def test_grammars_over_a_limit_and_those_that_are_not_read_have_none(kind: str, definition: str) -> None:
    assert text_grammar(kind, definition) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("definition", "text"),
    [
        ('start: "a" start', ""),  # matches no finite text
        ('start: "a" /x{300}/', "a"),  # too long a lexeme
        ('start: "a" "b"', "c"),
        ("start: " + " | ".join(f"/a+{number}/" for number in range(100)), "a"),  # too many readings
    ],
)
def test_texts_without_a_known_completion(definition: str, text: str) -> None:
    assert not list(state(definition, text).completions())
    assert not list(state(definition, text + "a" * 50).completions())


def test_terminals_without_room_for_more_states_are_made_anew_for_later_texts() -> None:
    grammar = text_grammar("lark", 'start: /[ab]*a[ab]{14}/ ";"')
    assert grammar is not None
    number = 0
    while not grammar.terminals[0].is_used_up:
        begun_text(grammar).after(f"{number:016b}".replace("0", "a").replace("1", "b"))
        number += 1
        assert number < 1 << 16
    assert next(begun_text(grammar).after("b" * 20 + "a" + "b" * 13).completions()) == ("a;", True)
