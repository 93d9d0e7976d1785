"""Arguments as XTML: the root object's members as blocks, in any order.

    <|open|>argument key="KEY" type="TYPE"<|sep|>VALUE<|close|>argument<|sep|>

A key with values of several JSON types has a block for each type. Strings are raw text, which the special token ends;
the other values are JSON.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from constrained_k2.formats.kimi_k3 import ARGUMENT, CLOSE, OPEN, SEPARATOR, escape
from constrained_k2.grammar.lark.objects import ObjectForm, object_rule
from constrained_k2.grammar.lark.terminals import NUMBER, literal
from constrained_k2.grammar.lark.values import LISTING, has_integer
from constrained_k2.grammar.plan.leaves import INTEGERS
from constrained_k2.grammar.spelling import ATTRIBUTE, RAW, Spelling
from constrained_k2.schema.shapes import NEVER, KeyMap, Kind, Node, Object, Shape, Value, value_of

if TYPE_CHECKING:
    from constrained_k2.grammar.lark.writer import LarkWriter

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
"""JSON type -> the rule of all its values, where numbers are terminals."""
_TYPES = {kind: literal(f' type="{kind}"') for kind in ANY_RULES}


def one_string(name: str, rule: str, form: Spelling) -> str:
    """Return the grammar of arguments that are one string, whose text, in its spelling, is that of a rule."""
    if form is RAW:
        return f"{_HEAD} {literal(chr(34) + escape(name) + chr(34))} {_TYPES['string']} {_SEPARATOR} {rule} {_END}"
    return rf'"{{" ws {literal(chr(34) + name + chr(34))} ws ":" ws "\"" {rule} "\"" ws "}}"'


def _extra_key(writer: "LarkWriter", shape: Object, found: tuple[str, ...]) -> str:
    return writer.extra_key(shape, found, ATTRIBUTE)


def _members(writer: "LarkWriter", name: str, node: Node) -> list[str]:
    return _extra_members(writer, literal(f'"{escape(name)}"'), node)


def _extra_members(writer: "LarkWriter", key: str, node: Node) -> list[str]:
    """Return the blocks under a key as one alternative: the object's parameter is then tested once for a key.

    The head, the key and the type are terminals of their own: LLGuidance is slow in a terminal that goes on after a
    part with exclusions.
    """
    ways = [f"{_TYPES[kind]} {_SEPARATOR} {rule}" for kind, rule in writer.argument_rules(node)]
    if not ways:
        return []
    return [f"{key} {ways[0] if len(ways) == 1 else writer.choice(ways)} {_END}"]


_FORM = ObjectForm("", "", '""', '""', f"{_HEAD} ", _extra_key, _members, _extra_members)


def arguments_rule(writer: "LarkWriter", shape: Shape, name: str) -> str:
    """Return the body of a rule for the arguments of a shape; its helper rules are added to the writer."""
    if isinstance(shape, Value):
        shape = _with_members(writer, shape.value)
    assert isinstance(shape, Object)
    return object_rule(writer, shape, name, _FORM)


def _with_members(writer: "LarkWriter", value: dict[str, object]) -> Object:
    """Return the shape of one object: its members may come in any order."""
    if has_integer(value):
        writer.note(*INTEGERS._replace(keywords=LISTING))
    nodes = {key: writer.normalizer.shapes_node((value_of(item),)) for key, item in value.items()}
    for node in nodes.values():
        writer.productivity.analyze(node)
    return Object(frozenset({KeyMap(tuple(nodes.items()), extra=NEVER)}), frozenset(value))
