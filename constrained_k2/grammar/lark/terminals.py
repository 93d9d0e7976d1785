"""Defines JSON lexemes as Lark terminals; writes Lark literals and LLGuidance's ``%if`` conditions.

STRING, PLAIN and NUMBER are defined once in a grammar; ws is bounded, so that a model cannot loop on blanks.
"""

import json

from constrained_k2.grammar.plan.expressions import ANY_CHARACTER
from constrained_k2.grammar.plan.nodes import BITS
from constrained_k2.grammar.spelling import ATTRIBUTE, JSON, RAW

# Longest run of whitespace between two JSON tokens: enough for indentation, and stops a model that loops on it.
MAX_WHITESPACE = 64
_quoted = json.JSONEncoder(ensure_ascii=False).encode  # json.dumps makes an encoder for each call with options
# At most 40 digits on either side of the point, and none that overflows a double: this stops a model that loops on one.
_FRACTION = r"(?:\.[0-9]{1,40})?"
_EXPONENT = "[eE][+-]?(?:[0-9]{1,2}|[12][0-9]{2})"
_UNSIGNED = f"(?:(?:0|[1-9][0-9]{{0,39}}){_FRACTION}|(?:0|[1-9][0-9]{{0,7}}){_FRACTION}{_EXPONENT})"
_WHITESPACE = f"""\
ws: WS?
WS: /[ \\n\\r\\t]{{1,{MAX_WHITESPACE}}}/
"""
_STRING = f'STRING: /"{ANY_CHARACTER}*"/\n'
_PLAIN = JSON.definition
NUMBER, SIGN_APART = "NUMBER", "number"
"""The terminal of any number, and a rule of any number in which the sign is a separate terminal."""
_NUMBER_RULES = {
    NUMBER: f"{NUMBER}: /-?{_UNSIGNED}/\n",
    SIGN_APART: f'{SIGN_APART}: "-"? UNSIGNED\nUNSIGNED: /{_UNSIGNED}/\n',
}
_ANY = """\
any: STRING | %s | "true" | "false" | "null" | any_array | any_object
any_array: "[" ws (any ws ("," ws any ws)*)? "]"
any_object: "{" ws (any_member ("," ws any_member)*)? "}"
any_member: STRING ws ":" ws any ws
"""


NO_FORCING = '%llguidance {"no_forcing": true}'
"""The first line of a grammar whose masks allow any tokenization of a forced text.

XTML needs it because checkpoints tokenize names in their own way. Clients' grammars and long strings need it because
LLGuidance (1.7.6) computes the whole forced text, without a limit, and tokenizes it again for each mask.
"""


def alone(*expressions: str) -> str:
    """Return a Lark grammar that accepts a text if at least one of the given terminal bodies matches it."""
    lines = [f"T{number}: {expression}\n" for number, expression in enumerate(expressions)]
    lines += (form.definition for form in (JSON, RAW, ATTRIBUTE) if any(form.terminal in one for one in expressions))
    return f"start: {' | '.join(f'T{number}' for number in range(len(expressions)))}\n{''.join(lines)}"


def literal(text: str) -> str:
    """Return a Lark string that matches exactly ``text``. LLGuidance (1.7.6) cannot read a plain U+007F."""
    return _quoted(text).replace("\x7f", r"\u007f")


def key(name: str) -> str:
    """Return a Lark string for a key or string value in its one spelling: escaped only if JSON requires it."""
    return literal(_quoted(name))


def count_at_least(bits: str, count: int) -> str:
    """Return the condition that at least ``count`` bits are set; LLGuidance (1.7.6) can compare with 63 at most."""
    return f"bit_count_ge({bits}, {count})" if count < BITS else f"is_ones({bits})"


def count_below(bits: str, count: int) -> str:
    """Return the condition that fewer than ``count`` bits are set."""
    return f"bit_count_lt({bits}, {count})" if count < BITS else f"not(is_ones({bits}))"


def only_if(conditions: list[str]) -> str:
    """Return the ``%if`` clause of an alternative that requires all ``conditions``; empty if there are none."""
    if not conditions:
        return ""
    *others, joined = conditions
    for condition in reversed(others):
        joined = f"and({condition}, {joined})"
    return f" %if {joined}"


def preamble(body: str, number: str = NUMBER) -> str:
    """Return only the definitions that a grammar's other lines refer to: the engine also parses unused rules.

    A name that also occurs inside another word or a literal only adds a definition that is not needed. ``number`` is
    the name of the rule or terminal of any number.
    """
    if "any" in body:
        return _WHITESPACE + _STRING + (_PLAIN if "PLAIN" in body else "") + _NUMBER_RULES[number] + _ANY % number
    named = (("STRING", _STRING), ("PLAIN", _PLAIN), (number, _NUMBER_RULES[number]))
    return _WHITESPACE + "".join(definition for name, definition in named if name in body)
