"""Writes the Lark rules of call arguments in XTML, Kimi K3's format: a tagged block per argument.

    <|open|>argument key="KEY" type="TYPE"<|sep|>VALUE<|close|>argument<|sep|>

Blocks may come in any order. If a key's values may have several JSON types, each type has an alternative block. Strings
are raw text, which a special token ends; other values are JSON.
"""

from collections.abc import Mapping

from constrained_k2.formats.kimi_k3 import ARGUMENT, CLOSE, OPEN, SEPARATOR, escape
from constrained_k2.grammar.lark.objects import ObjectForm
from constrained_k2.grammar.lark.rules import Rules
from constrained_k2.grammar.lark.terminals import NUMBER, SIGN_APART, literal
from constrained_k2.grammar.plan.nodes import ANY_VALUE
from constrained_k2.grammar.spelling import ATTRIBUTE, RAW, Spelling
from constrained_k2.schema.shapes import Kind

_HEAD, _SEPARATOR, _END = "argument_head", "separator", "argument_end"
XTML_PREAMBLE = f"""\
{RAW.definition}{ATTRIBUTE.definition}{_SEPARATOR}: {SEPARATOR}
{_HEAD}: {OPEN} {literal(f"{ARGUMENT} key=")}
{_END}: {CLOSE} {literal(ARGUMENT)} {_SEPARATOR}
"""
ANY_RULES: Mapping[Kind, str] = {
    "string": RAW.terminal,
    "number": NUMBER,
    "boolean": '("true" | "false")',
    "null": '"null"',
    "object": "any_object",
    "array": "any_array",
}
"""JSON type -> the rule of any value of that type, if a number is one terminal."""
_TYPES = {kind: literal(f' type="{kind}"') for kind in ANY_RULES}


def one_string(name: str, rule: str, form: Spelling) -> str:
    """Return the grammar of arguments that are one string ``name``; ``rule`` matches the string as it is written."""
    if form is RAW:
        return f"{_HEAD} {literal(chr(34) + escape(name) + chr(34))} {_TYPES['string']} {_SEPARATOR} {rule} {_END}"
    return rf'"{{" ws {literal(chr(34) + name + chr(34))} ws ":" ws "\"" {rule} "\"" ws "}}"'


def _key(name: str) -> str:
    return literal(f'"{escape(name)}"')


def _members(rules: Rules, key: str, number: int) -> list[str]:
    """Return the blocks of a key as one alternative: the object's parameter is then tested once for each key.

    The head, the key and the type are separate terminals: LLGuidance is slow in a terminal that continues after a part
    with exclusions.
    """
    any_rules = {**ANY_RULES, "number": SIGN_APART if rules.plan.signs_apart else NUMBER}
    parts = rules.plan.nodes[number].parts
    named = ((kind, any_rules[kind] if part == ANY_VALUE else rules.rule(part)) for kind, part in parts)
    alternatives = [f"{_TYPES[kind]} {_SEPARATOR} {rule}" for kind, rule in named]
    if not alternatives:
        return []
    return [f"{key} {alternatives[0] if len(alternatives) == 1 else rules.choice(alternatives)} {_END}"]


ARGUMENTS_FORM = ObjectForm("", "", '""', '""', f"{_HEAD} ", _key, _members)
"""Arguments as the members of an object."""
