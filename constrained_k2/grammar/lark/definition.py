r"""Parses a client's Lark grammar: rules into lark's parse trees, terminals into parsed regexes.

    start: /b+/ NL      rules      start: the tree of its body
    NL: /\n/            items_of   /b+/: one repetition; NL: one character

The syntax that OpenAI documents is supported: rules, terminals, strings, regular expressions, ranges, counts,
``%import common.…`` and ``%ignore``. Priorities have no effect.
"""

import pkgutil
import re
import re._constants as sre  # type: ignore[import-not-found] # standard library, without stubs
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

from lark import Lark, Token, Tree
from lark.exceptions import LarkError

from constrained_k2.errors import SchemaTooCostly, UnsupportedSchema, excerpt
from constrained_k2.grammar.patterns.characters import Untranslatable
from constrained_k2.grammar.patterns.rust import parse_rust
from constrained_k2.grammar.patterns.tree import Items, walk, without_flags
from constrained_k2.grammar.spelling import TOP

_MAX_DEFINITION = 1 << 14  # characters, which lark reads in 0.2 s
_MAX_RULES = 512
_MAX_ITEMS = 1 << 15  # max regex items of one terminal, including nested items and class members
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", '"': '"', "\\": "\\", "/": "/"}
# Terminals of lark's ``common`` that have lookaround or laziness, rewritten with the same meaning.
_REGULAR = {"ESCAPED_STRING": r'/"([^"\\\n]|\\.)*"/', "C_COMMENT": r"/\/\*([^*]|\*+[^*\/])*\*+\//"}
_REFUSED = {"override_rule": "%override", "declare": "%declare"}
OPERATORS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_MAX_TURNS, _MANY_DIGITS = 10_000, 9
REWRITE = "Rewrite it without lookaround, anchors, back-references and lazy repetitions, and with shorter counts"


class _Terminal(NamedTuple):
    items: Items
    size: int  # the number of items, including nested items and class members


class _Definitions(NamedTuple):
    rules: dict[str, Tree[Token]]
    terminals: dict[str, Tree[Token]]
    ignored: list[Tree[Token]]


class Definition:
    """A client's grammar.

    Attributes:
        rules: Name -> body, of the rules that ``start`` needs; a rule comes before rules that only it refers to.
        ignored: The terminals of ``%ignore``.

    Raises:
        UnsupportedSchema: The definition is wrong, or uses syntax that is not supported.
        SchemaTooCostly: The definition exceeds a limit.
    """

    def __init__(self, text: str) -> None:
        check_length(text)
        rules, self._terminals, self.ignored = _read(text)
        if len(rules) > _MAX_RULES:
            problem = f"the grammar has {len(rules)} rules, over the limit of {_MAX_RULES}"
            raise too_costly(problem, "rules", _MAX_RULES, len(rules))
        self.rules = _reachable(rules)
        self._found: dict[str, _Terminal | None] = {}  # terminals by name; None while a terminal is being read

    def items_of(self, node: Tree[Token]) -> Items:
        """Return the parsed regex of a terminal in a rule or in :attr:`ignored`.

        Raises:
            UnsupportedSchema: The terminal has no exact translation.
            SchemaTooCostly: The terminal exceeds a limit.
        """
        return self._terminal(node, self._terminals).items

    def _terminal(self, node: Any, scope: Mapping[str, Tree[Token]]) -> _Terminal:
        """Parse a part of a terminal; ``scope`` defines the terminals that it refers to."""
        match node.data, node.children:
            case ("expansions", alternatives):
                return _alternatives([self._terminal(each, scope) for each in alternatives])
            case ("expansion", parts):
                found = [self._terminal(part, scope) for part in parts]
                size = bounded(sum(part.size for part in found))
                return _Terminal([item for part in found for item in part.items], size)
            case ("alias", [inner, _]):
                return self._terminal(inner, scope)
            case ("expr", [inner, *counts]):
                part = self._terminal(inner, scope)
                return _repetition(part, *repeat_counts(counts)) if counts[0] else part
            case ("maybe", [inner]):
                return _repetition(self._terminal(inner, scope), 0, 1)
            case ("literal", [Token(type="STRING", value=text)]):
                return _string(text)
            case ("literal", [Token(value=text)]):
                return _expression(text)
            case ("literal_range", [low, high]):
                ends = _decoded(low), _decoded(high)
                if not len(ends[0]) == len(ends[1]) == 1 or ends[0] > ends[1]:
                    raise wrong(f"{excerpt(f'{low}..{high}')} does not go from a character to a later one")
                return _Terminal([(sre.IN, [(sre.RANGE, (ord(ends[0]), ord(ends[1])))])], 1)
            case ("common", [Token(value=name)]):
                return self._named(name, _common())
            case ("name", [Token(type="TOKEN", value=name)]):
                return self._named(name, scope)
        raise wrong(f"a terminal refers to a rule or a template: {excerpt(' '.join(map(str, node.children)))}")

    def _named(self, name: str, scope: Mapping[str, Tree[Token]]) -> _Terminal:
        key = name if scope is self._terminals else f"common.{name}"
        if key not in self._found:
            if name not in scope:
                raise wrong(f"the terminal {excerpt(name)} is used and not defined")
            self._found[key] = None
            self._found[key] = self._terminal(scope[name], scope)
        found = self._found[key]
        if found is None:
            raise wrong(f"the terminal {excerpt(name)} is part of itself", "Write a rule, which may be")
        return found


@cache
def _parser() -> Lark:
    """Lark's grammar of its own syntax, as a parser that takes time linear in a text's length."""
    return Lark.open_from_package("lark", "lark.lark", ("grammars",), parser="lalr")


@cache
def _common() -> dict[str, Tree[Token]]:
    """The terminals that ``%import common.…`` names."""
    text = (pkgutil.get_data("lark", "grammars/common.lark") or b"").decode()
    regular = "\n".join(f"{name}: {pattern}" for name, pattern in _REGULAR.items())
    return _defined(_parser().parse(f"{text}\n")).terminals | _defined(_parser().parse(f"{regular}\n")).terminals


def _read(definition: str) -> _Definitions:
    try:
        tree = _parser().parse(definition)
    except LarkError as error:
        raise wrong(f"the Lark grammar cannot be read: {str(error).strip().splitlines()[0][:200]}") from None
    return _defined(tree)


def _defined(tree: Tree[Token]) -> _Definitions:
    found = _Definitions({}, {}, [])
    for statement in tree.children:
        assert isinstance(statement, Tree)
        kind, parts = str(statement.data), list[Any](statement.children)
        if kind in {"rule", "token"}:
            name, params, *_, body = parts
            known = found.rules if kind == "rule" else found.terminals
            if any(part is not None for part in params.children):
                raise wrong(f"{excerpt(str(name))} is a template", "Write a rule for each of its uses")
            _define(known, str(name).lstrip("!?"), body)
        elif kind == "ignore":
            found.ignored.extend(parts)
        elif kind in {"import", "multi_import"}:
            for alias, imported in _imported(kind, parts):
                _define(found.terminals, alias, imported)
        else:
            raise wrong(f"{_REFUSED[kind]} is not supported", "Write the rules out")
    return found


def _define(known: dict[str, Tree[Token]], name: str, body: Any) -> None:
    if name in known:
        raise wrong(f"{excerpt(name)} is defined twice")
    known[name] = body


def _imported(kind: str, parts: list[Any]) -> Iterable[tuple[str, Tree[Token]]]:
    """Yield an import's terminals by their local names; terminals that these refer to are found in ``common``."""
    path = [str(part.children[0]) if isinstance(part, Tree) else str(part) for part in parts[0].children]
    if kind == "import":
        path, names = path[:-2], [(path[-1], path[-1] if parts[1] is None else str(parts[1].children[0]))]
    else:
        names = [(str(name.children[0]),) * 2 for name in parts[1].children]
    if path != ["common"]:
        raise wrong(f"%import of {excerpt(''.join(path) or names[0][0])}", "Import from common, or write it out")
    for name, alias in names:
        if name not in _common():
            raise wrong(f"common has no terminal {excerpt(name)}")
        yield alias, Tree("common", [Token("TOKEN", name)])


def _reachable(rules: Mapping[str, Tree[Token]]) -> dict[str, Tree[Token]]:
    """Return the rules that ``start`` refers to, directly or not."""
    found, waiting = dict[str, Tree[Token]](), ["start"]
    while waiting:
        name = waiting.pop()
        if name not in rules:
            raise wrong(f"the rule {excerpt(name)} is used and not defined")
        if name not in found:
            body = found[name] = rules[name]
            names = (node.children[0] for node in body.find_data("name"))
            waiting += (str(one) for one in names if isinstance(one, Token) and one.type == "RULE")
    return found


def repeat_counts(given: list[Any]) -> tuple[int, int | None]:
    """Return the least and the most repetitions, from the children of lark's tree after the repeated part."""
    first = str(given[0])
    if first in OPERATORS:
        return OPERATORS[first]
    least = int(first) if len(first) < _MANY_DIGITS else _MAX_TURNS + 1
    last = first if given[1] is None else str(given[1])
    most = int(last) if len(last) < _MANY_DIGITS else _MAX_TURNS + 1
    if not 0 <= least <= most or most > _MAX_TURNS:
        raise wrong(f"the counts ~{first}..{last} are not from 0 to {_MAX_TURNS} in order")
    return least, most


def _repetition(part: _Terminal, least: int, most: int | None) -> _Terminal:
    return _Terminal([(sre.MAX_REPEAT, (least, sre.MAXREPEAT if most is None else most, part.items))], part.size + 1)


def _alternatives(alternatives: list[_Terminal]) -> _Terminal:
    size = bounded(1 + sum(each.size for each in alternatives))
    return _Terminal([(sre.BRANCH, (None, [each.items for each in alternatives]))], size)


def bounded(size: int) -> int:
    """Return the number of a terminal's items; raises ``SchemaTooCostly`` if there are too many."""
    if size > _MAX_ITEMS:
        problem = f"a terminal has {size} parts, over the limit of {_MAX_ITEMS}"
        raise too_costly(problem, "terminal_parts", _MAX_ITEMS, size)
    return size


def _string(text: str) -> _Terminal:
    items = [(sre.LITERAL, ord(character)) for character in _decoded(text.removesuffix("i"))]
    return _Terminal(items if text.endswith('"') else without_flags(items, int(re.IGNORECASE)), len(items))


def _decoded(text: str) -> str:
    def character(found: re.Match[str]) -> str:
        *codes, other = found.groups()
        if other is None:
            code = int("".join(filter(None, codes)), 16)
            if code > TOP:
                raise wrong(f"the string {excerpt(text)} has a code above 10ffff")
            return chr(code)
        if other not in _ESCAPED:
            raise wrong(f"the string {excerpt(text)} has the escape \\{other}", "Escape the backslash")
        return _ESCAPED[other]

    return _ESCAPE.sub(character, text[1:-1])


def _expression(text: str) -> _Terminal:
    end = text.rindex("/")
    try:
        items = parse_rust(text[1:end], text[end + 1 :])
    except Untranslatable as error:
        raise untranslatable(text, error) from None
    return _Terminal(items, bounded(size_of(items)))


def size_of(items: Items) -> int:
    """Return the number of items of a regex, including nested items and class members."""
    return sum(len(argument) if operation is sre.IN else 1 for operation, argument in walk(items))


def check_length(definition: str) -> None:
    """Refuse a definition, Lark or regex, that is too long; raises ``SchemaTooCostly``."""
    if len(definition) > _MAX_DEFINITION:
        problem = f"the definition has {len(definition)} characters, over the limit of {_MAX_DEFINITION}"
        raise too_costly(problem, "definition_characters", _MAX_DEFINITION, len(definition))


def too_costly(problem: str, budget: str, limit: int, actual: int) -> SchemaTooCostly:
    """Return the error for a definition that exceeds a limit."""
    return SchemaTooCostly(problem, "", "Shorten it", budget, limit, actual)


def wrong(problem: str, remedy: str = "Correct the definition") -> UnsupportedSchema:
    """Return the error for a definition that is wrong, or that is not supported."""
    return UnsupportedSchema(problem, "", remedy)


def untranslatable(text: str, reason: Untranslatable) -> UnsupportedSchema:
    """Return the error for a terminal that has no exact translation."""
    return wrong(f"the terminal {excerpt(text)} has {reason}", REWRITE)
