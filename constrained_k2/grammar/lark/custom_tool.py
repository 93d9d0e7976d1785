r"""Translates an OpenAI custom tool's grammar (Lark or regex) into a grammar of a call's arguments.

    start: /b+/ NL      in JSON:  start: "{" ws "\"input\"" ws ":" ws "\"" r_start "\"" ws "}"
    NL: /\n/                      r_start: L0 L1
                                  L0: /(?:b){1,}/
                                  L1: /\\n/

The arguments are an object of one string. The client's rules keep their structure; each terminal is rewritten to match
the text as it is spelled in that string. The syntax that OpenAI documents is supported: rules, terminals, strings,
regular expressions, ranges, counts, ``%import common.…`` and ``%ignore``. Priorities have no effect. The lexer is
greedy: if two terminals match, the longer match wins, as with OpenAI. Inside JSON, a terminal may also end before an
escaped character that it could match (:mod:`..patterns.runs`).
"""

import pkgutil
import re
import re._constants as sre  # type: ignore[import-not-found] # standard library, without stubs
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

from lark import Lark, Token, Tree
from lark.exceptions import LarkError

from constrained_k2.errors import SchemaTooCostly, UnsupportedSchema, excerpt
from constrained_k2.grammar.lark.arguments import XTML_PREAMBLE, one_string
from constrained_k2.grammar.lark.longest_match import Blocked, LongestMatch
from constrained_k2.grammar.lark.terminals import NO_FORCING, preamble
from constrained_k2.grammar.patterns.characters import Untranslatable
from constrained_k2.grammar.patterns.runs import is_plain, run_rules
from constrained_k2.grammar.patterns.rust import parse_rust
from constrained_k2.grammar.patterns.tree import Items, plain, walk, without_flags
from constrained_k2.grammar.spelling import JSON, RAW, TOP, Spelling
from constrained_k2.threads.interruptible import check_deadline

INPUT = "input"
"""The name of the string, as vLLM shows a custom tool to the model."""

Syntax = Literal["lark", "regex"]

_MAX_DEFINITION = 1 << 14  # characters, which lark reads in 0.2 s
_MAX_RULES = 512
_MAX_ITEMS = 1 << 15  # max regex items of one terminal, including nested items and class members
_MAX_TEXT = 1 << 20  # max characters of all rewritten terminals
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", '"': '"', "\\": "\\", "/": "/"}
# Terminals of lark's ``common`` that have lookaround or laziness, rewritten with the same meaning.
_REGULAR = {"ESCAPED_STRING": r'/"([^"\\\n]|\\.)*"/', "C_COMMENT": r"/\/\*([^*]|\*+[^*\/])*\*+\//"}
_REFUSED = {"override_rule": "%override", "declare": "%declare"}
_OPERATORS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_MAX_TURNS, _MANY_DIGITS = 10_000, 9
_REWRITE = "Rewrite it without lookaround, anchors, back-references and lazy repetitions, and with shorter counts"


class _Terminal(NamedTuple):
    items: Items
    size: int  # the number of items, including nested items and class members


def custom_tool_text(syntax: Syntax, definition: str, encoding: Literal["json", "xtml"]) -> str:
    """Return the grammar of the arguments, in LLGuidance's Lark dialect.

    Raises:
        UnsupportedSchema: The definition is wrong, or has a part without an exact translation.
        SchemaTooCostly: The definition exceeds a limit.
    """
    if len(definition) > _MAX_DEFINITION:
        raise _too_long(definition)
    form = RAW if encoding == "xtml" else JSON
    try:
        if syntax == "regex":
            rule, lines = _regex(definition, form)
        else:
            rule, lines = _Writer(_read(definition), form).written()
    except RecursionError:
        raise UnsupportedSchema("the definition is nested too deeply", "", "Flatten it") from None
    body = "\n".join([f"start: {one_string(INPUT, rule, form)}", *lines])
    return f"{NO_FORCING}\n{body}\n{XTML_PREAMBLE if encoding == 'xtml' else preamble('')}"


class Definition(NamedTuple):
    """The rules and terminals of a definition, as lark's trees."""

    rules: Mapping[str, Tree[Token]]
    ignored: Sequence[Tree[Token]]  # terminals
    items_of: Callable[[Tree[Token]], Items]  # returns a terminal's parsed regex; also for ignored terminals


def read_definition(definition: str) -> Definition:
    """Read a Lark grammar; raises as :func:`custom_tool_text`."""
    if len(definition) > _MAX_DEFINITION:
        raise _too_long(definition)
    found = _read(definition)
    return Definition(found.rules, found.ignored, _Writer(found, RAW).items_of)


def _too_long(definition: str) -> SchemaTooCostly:
    problem = f"the definition has {len(definition)} characters, over the limit of {_MAX_DEFINITION}"
    return _too_costly(problem, "definition_characters", _MAX_DEFINITION, len(definition))


def _too_costly(problem: str, budget: str, limit: int, actual: int) -> SchemaTooCostly:
    return SchemaTooCostly(problem, "", "Shorten it", budget, limit, actual)


def _wrong(problem: str, remedy: str = "Correct the definition") -> UnsupportedSchema:
    return UnsupportedSchema(problem, "", remedy)


def _regex(definition: str, form: Spelling) -> tuple[str, list[str]]:
    try:
        items = parse_rust(definition, is_whole=True)
        _bounded(_size(items))
        text = plain(items, form)
    except Untranslatable as error:
        raise _wrong(f"the regular expression has {error}", _REWRITE) from None
    return "TEXT", [f"TEXT: /{text}/"]


def _without_text(blocked: Blocked | None) -> UnsupportedSchema:
    if blocked is None:
        return _wrong("no text matches the rule 'start'")
    rule, left, right = map(excerpt, blocked)
    problem = f"the rule {rule} cannot be completed: {left} matches as much as it can, also what {right} begins with"
    return _wrong(problem, f"Exclude those characters from {left}")


class _Definitions(NamedTuple):
    rules: dict[str, Tree[Token]]
    terminals: dict[str, Tree[Token]]
    ignored: list[Tree[Token]]


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
        raise _wrong(f"the Lark grammar cannot be read: {str(error).strip().splitlines()[0][:200]}") from None
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
                raise _wrong(f"{excerpt(str(name))} is a template", "Write a rule for each of its uses")
            _define(known, str(name).lstrip("!?"), body)
        elif kind == "ignore":
            found.ignored.extend(parts)
        elif kind in {"import", "multi_import"}:
            for alias, imported in _imported(kind, parts):
                _define(found.terminals, alias, imported)
        else:
            raise _wrong(f"{_REFUSED[kind]} is not supported", "Write the rules out")
    return found


def _define(known: dict[str, Tree[Token]], name: str, body: Any) -> None:
    if name in known:
        raise _wrong(f"{excerpt(name)} is defined twice")
    known[name] = body


def _imported(kind: str, parts: list[Any]) -> Iterable[tuple[str, Tree[Token]]]:
    """Yield an import's terminals by their local names; terminals that these refer to are found in ``common``."""
    path = [str(part.children[0]) if isinstance(part, Tree) else str(part) for part in parts[0].children]
    if kind == "import":
        path, names = path[:-2], [(path[-1], path[-1] if parts[1] is None else str(parts[1].children[0]))]
    else:
        names = [(str(name.children[0]),) * 2 for name in parts[1].children]
    if path != ["common"]:
        raise _wrong(f"%import of {excerpt(''.join(path) or names[0][0])}", "Import from common, or write it out")
    for name, alias in names:
        if name not in _common():
            raise _wrong(f"common has no terminal {excerpt(name)}")
        yield alias, Tree("common", [Token("TOKEN", name)])


class _Writer:
    """Writes the rules and terminals that ``start`` needs."""

    def __init__(self, definitions: _Definitions, form: Spelling) -> None:
        self._rules, self._terminals, self._ignored = definitions
        self._form = form
        self._read: dict[str, _Terminal | None] = {}  # terminals by name; None while a terminal is being read
        self._symbols: dict[str, str] = {}  # a terminal's text or name -> its reference in a rule
        self._lexemes: dict[str, str] = {}  # body -> name of an LLGuidance terminal
        self._split: list[str] = []  # rules of terminals that are split into several terminals
        self._waiting = ["start"]  # rules, in the order in which they are needed
        self._skip = ""  # the skip rule, written after each terminal
        self._matches: LongestMatch
        self._written_text = 0  # characters of the terminals so far

    def written(self) -> tuple[str, list[str]]:
        """Return the name of the rule for the whole text, and the lines of the grammar."""
        if len(self._rules) > _MAX_RULES:
            problem = f"the grammar has {len(self._rules)} rules, over the limit of {_MAX_RULES}"
            raise _too_costly(problem, "rules", _MAX_RULES, len(self._rules))
        rules = self._reachable()

        self._matches = LongestMatch(rules, self._ignored, self.items_of, repeat_counts, self._form)
        blocked = self._matches.blocked()
        if blocked or not self._matches.has_text(rules["start"]):
            raise _without_text(blocked)
        whole, lines = "r_start", list[str]()
        if self._ignored:
            ways = [self._symbol(f"ignored {number}", tree) for number, tree in enumerate(self._ignored)]
            whole, lines = "whole", [f"skip: ({' | '.join(ways)})*", "whole: skip r_start"]
            self._skip = " skip"
            self._symbols.clear()  # in rules, a skip follows these terminals
        for name in self._waiting:  # grows meanwhile
            lines += self._rule(name)
        return whole, [*lines, *self._split, *(f"{name}: {body}" for body, name in self._lexemes.items())]

    def _reachable(self) -> dict[str, Tree[Token]]:
        """Return the rules that ``start`` refers to, directly or not."""
        found, waiting = dict[str, Tree[Token]](), ["start"]
        while waiting:
            name = waiting.pop()
            if name not in self._rules:
                raise _wrong(f"the rule {excerpt(name)} is used and not defined")
            if name not in found:
                body = found[name] = self._rules[name]
                names = (node.children[0] for node in body.find_data("name"))
                waiting += (str(one) for one in names if isinstance(one, Token) and one.type == "RULE")
        return found

    def _rule(self, name: str) -> list[str]:
        """Return the lines of a rule.

        ``s: s "+" s | x`` is written as ``x ("+" x)*``, which matches the same texts. In the first form, LLGuidance
        would compare all parses of a text.
        """
        body = self._rules[name]
        ways = list(map(_bare, body.children if body.data == "expansions" else [body]))
        doubled = [way for way in filter(self._matches.has_text, ways) if _is_doubled(way, name)]
        others = self._expression(Tree("expansions", [way for way in ways if way not in doubled]))
        if not doubled:
            return [f"r_{name}: {others}"]
        between = self._expression(Tree("expansions", [Tree("expansion", way.children[1:-1]) for way in doubled]))
        return [f"r_{name}: p_{name} ({between} p_{name})*", f"p_{name}: {others}"]

    def _expression(self, node: Any) -> str:
        """Return a part of a rule."""
        match node.data, node.children:
            case ("expansions", ways):
                return f"({' | '.join(map(self._expression, filter(self._matches.has_text, ways)))})"
            case ("expansion", parts):
                return " ".join(map(self._expression, parts)) or '""'
            case ("alias", [inner, _]):
                return self._expression(inner)
            case ("expr", [inner, *counts]):
                return f"{self._optional(inner)}{_repeated(counts)}" if counts[0] else self._expression(inner)
            case ("maybe", [inner]):
                return f"{self._optional(inner)}?"
            case ("name", [Token(type="RULE", value=name)]):
                if name not in self._waiting:
                    self._waiting.append(name)
                return f"r_{name}"
        return self._symbol(" ".join(map(str, node.children)), node)

    def _optional(self, node: Any) -> str:
        return f"({self._expression(node)})" if self._matches.has_text(node) else '("")'

    def _symbol(self, text: str, node: Any) -> str:
        """Return a terminal's reference in a rule, followed by the skip rule if there is one."""
        known = self._symbols.get(text)
        if known is None:
            known = self._symbols[text] = self._written(node, text) + self._skip
        return f"({known})" if self._skip else known

    def _written(self, node: Any, text: str) -> str:
        check_deadline()
        items, _ = self._terminal(node, self._terminals)
        try:
            if is_plain(items, self._form, self._matches.alike):
                text = plain(items, self._form)
                return self._lexeme(f"/{text}/" if text else "")
            name = f"t{len(self._split)}"
            rules = run_rules(items, self._form, name, self._lexeme, self._matches.alike)
        except Untranslatable as error:
            raise _untranslatable(text, error) from None
        self._split += rules
        self._count(sum(map(len, rules)))
        return name

    def _lexeme(self, body: str) -> str:
        """Return the name of the terminal with a body: a regex, or names of terminals."""
        if body.isalnum():
            return body
        if body and body not in self._lexemes:
            self._lexemes[body] = f"L{len(self._lexemes)}"
            self._count(len(body))
        return self._lexemes.get(body, '""')

    def _count(self, more: int) -> None:
        self._written_text += more
        if self._written_text > _MAX_TEXT:
            problem = f"its terminals take more than {_MAX_TEXT} characters in LLGuidance's grammar"
            raise _too_costly(problem, "grammar_characters", _MAX_TEXT, self._written_text)

    def items_of(self, node: Tree[Token]) -> Items:
        """Return the parsed regex of a terminal in a rule."""
        return self._terminal(node, self._terminals).items

    def _terminal(self, node: Any, scope: Mapping[str, Tree[Token]]) -> _Terminal:
        """Parse a part of a terminal; ``scope`` defines the terminals that it refers to."""
        match node.data, node.children:
            case ("expansions", ways):
                return _alternatives([self._terminal(way, scope) for way in ways])
            case ("expansion", parts):
                found = [self._terminal(part, scope) for part in parts]
                size = _bounded(sum(part.size for part in found))
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
                    raise _wrong(f"{excerpt(f'{low}..{high}')} does not go from a character to a later one")
                return _Terminal([(sre.IN, [(sre.RANGE, (ord(ends[0]), ord(ends[1])))])], 1)
            case ("common", [Token(value=name)]):
                return self._named(name, _common())
            case ("name", [Token(type="TOKEN", value=name)]):
                return self._named(name, scope)
        raise _wrong(f"a terminal refers to a rule or a template: {excerpt(' '.join(map(str, node.children)))}")

    def _named(self, name: str, scope: Mapping[str, Tree[Token]]) -> _Terminal:
        key = name if scope is self._terminals else f"common.{name}"
        if key not in self._read:
            if name not in scope:
                raise _wrong(f"the terminal {excerpt(name)} is used and not defined")
            self._read[key] = None
            self._read[key] = self._terminal(scope[name], scope)
        found = self._read[key]
        if found is None:
            raise _wrong(f"the terminal {excerpt(name)} is part of itself", "Write a rule, which may be")
        return found


def _bare(node: Any) -> Any:
    """Unwrap a part of a rule: remove alias nodes, and ``expr`` nodes without a count."""
    while node.data == "alias" or (node.data == "expr" and node.children[1] is None):
        node = node.children[0]
    return node


def _is_doubled(way: Any, name: str) -> bool:
    """Return True if an alternative of a rule begins and ends with that rule itself."""
    if way.data != "expansion" or len(way.children) < 2:
        return False
    ends = map(_bare, (way.children[0], way.children[-1]))
    return all(part.data == "name" and part.children == [Token("RULE", name)] for part in ends)


def repeat_counts(given: list[Any]) -> tuple[int, int | None]:
    """Return the least and the most repetitions, from the children of lark's tree after the repeated part."""
    first = str(given[0])
    if first in _OPERATORS:
        return _OPERATORS[first]
    least = int(first) if len(first) < _MANY_DIGITS else _MAX_TURNS + 1
    last = first if given[1] is None else str(given[1])
    most = int(last) if len(last) < _MANY_DIGITS else _MAX_TURNS + 1
    if not 0 <= least <= most or most > _MAX_TURNS:
        raise _wrong(f"the counts ~{first}..{last} are not from 0 to {_MAX_TURNS} in order")
    return least, most


def _repeated(given: list[Any]) -> str:
    if str(given[0]) in _OPERATORS:
        return str(given[0])
    least, most = repeat_counts(given)
    return f"{{{least},{most}}}"


def _repetition(part: _Terminal, least: int, most: int | None) -> _Terminal:
    return _Terminal([(sre.MAX_REPEAT, (least, sre.MAXREPEAT if most is None else most, part.items))], part.size + 1)


def _alternatives(ways: list[_Terminal]) -> _Terminal:
    size = _bounded(1 + sum(way.size for way in ways))
    return _Terminal([(sre.BRANCH, (None, [way.items for way in ways]))], size)


def _bounded(size: int) -> int:
    if size > _MAX_ITEMS:
        problem = f"a terminal has {size} parts, over the limit of {_MAX_ITEMS}"
        raise _too_costly(problem, "terminal_parts", _MAX_ITEMS, size)
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
                raise _wrong(f"the string {excerpt(text)} has a code above 10ffff")
            return chr(code)
        if other not in _ESCAPED:
            raise _wrong(f"the string {excerpt(text)} has the escape \\{other}", "Escape the backslash")
        return _ESCAPED[other]

    return _ESCAPE.sub(character, text[1:-1])


def _expression(text: str) -> _Terminal:
    end = text.rindex("/")
    try:
        items = parse_rust(text[1:end], text[end + 1 :])
    except Untranslatable as error:
        raise _untranslatable(text, error) from None
    return _Terminal(items, _bounded(_size(items)))


def _size(items: Items) -> int:
    return sum(len(argument) if operation is sre.IN else 1 for operation, argument in walk(items))


def _untranslatable(text: str, reason: Untranslatable) -> UnsupportedSchema:
    return _wrong(f"the terminal {excerpt(text)} has {reason}", _REWRITE)
