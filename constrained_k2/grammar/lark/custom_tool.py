r"""Translates an OpenAI custom tool's grammar (Lark or regex) into a grammar of a call's arguments.

    start: /b+/ NL      in JSON:  start: "{" ws "\"input\"" ws ":" ws "\"" r_start "\"" ws "}"
    NL: /\n/                      r_start: L0 t0
                                  L0: /(?:b){1,}/
                                  t0: L1            L1: /\\n/

The arguments are an object of one string. The client's rules keep their structure; each terminal is rewritten to match
the text as it is spelled in that string. The lexer is greedy: if two terminals match, the longer match wins, as with
OpenAI. Inside JSON, a terminal may also end before an escaped character that it could match (:mod:`..patterns.runs`).
"""

from typing import Any, Literal

from lark import Token, Tree

from constrained_k2.errors import UnsupportedSchema, excerpt
from constrained_k2.grammar.lark.arguments import XTML_PREAMBLE, one_string
from constrained_k2.grammar.lark.definition import (
    OPERATORS,
    REWRITE,
    Definition,
    bounded,
    check_length,
    repeat_counts,
    size_of,
    too_costly,
    untranslatable,
    wrong,
)
from constrained_k2.grammar.lark.longest_match import Blocked, LongestMatch
from constrained_k2.grammar.lark.terminals import NO_FORCING, preamble
from constrained_k2.grammar.patterns.characters import Untranslatable
from constrained_k2.grammar.patterns.runs import is_plain, run_rules
from constrained_k2.grammar.patterns.rust import parse_rust
from constrained_k2.grammar.patterns.tree import plain
from constrained_k2.grammar.spelling import JSON, RAW, Spelling
from constrained_k2.threads.interruptible import check_deadline

INPUT = "input"
"""The name of the string, as vLLM shows a custom tool to the model."""

Syntax = Literal["lark", "regex"]

_MAX_TEXT = 1 << 20  # max characters of all rewritten terminals


def custom_tool_text(syntax: Syntax, definition: str, encoding: Literal["json", "xtml"]) -> str:
    """Return the grammar of the arguments, in LLGuidance's Lark dialect.

    Raises:
        UnsupportedSchema: The definition is wrong, or has a part without an exact translation.
        SchemaTooCostly: The definition exceeds a limit.
    """
    form = RAW if encoding == "xtml" else JSON
    try:
        rule, lines = _regex(definition, form) if syntax == "regex" else _Writer(Definition(definition), form).written()
    except RecursionError:
        raise UnsupportedSchema("the definition is nested too deeply", "", "Flatten it") from None
    body = "\n".join([f"start: {one_string(INPUT, rule, form)}", *lines])
    return f"{NO_FORCING}\n{body}\n{XTML_PREAMBLE if encoding == 'xtml' else preamble('')}"


def _regex(definition: str, form: Spelling) -> tuple[str, list[str]]:
    check_length(definition)
    try:
        items = parse_rust(definition, is_whole=True)
        bounded(size_of(items))
        text = plain(items, form)
    except Untranslatable as error:
        raise wrong(f"the regular expression has {error}", REWRITE) from None
    return "TEXT", [f"TEXT: /{text}/"]


def _without_text(blocked: Blocked | None) -> UnsupportedSchema:
    if blocked is None:
        return wrong("no text matches the rule 'start'")
    rule, left, right = map(excerpt, blocked)
    problem = f"the rule {rule} cannot be completed: {left} matches as much as it can, also what {right} begins with"
    return wrong(problem, f"Exclude those characters from {left}")


class _Writer:
    """Writes the rules and terminals that ``start`` needs."""

    def __init__(self, definition: Definition, form: Spelling) -> None:
        self._definition = definition
        self._form = form
        self._symbols: dict[str, str] = {}  # a terminal's text or name -> its reference in a rule
        self._lexemes: dict[str, str] = {}  # body -> name of an LLGuidance terminal
        self._split: list[str] = []  # rules of terminals that are split into several terminals
        self._waiting = ["start"]  # rules, in the order in which they are needed
        self._skip = ""  # the skip rule, written after each terminal
        self._matches = LongestMatch(definition, form)
        self._written_text = 0  # characters of the terminals so far

    def written(self) -> tuple[str, list[str]]:
        """Return the name of the rule for the whole text, and the lines of the grammar."""
        blocked = self._matches.blocked()
        if blocked or not self._matches.has_text(self._definition.rules["start"]):
            raise _without_text(blocked)
        whole, lines = "r_start", list[str]()
        if ignored := self._definition.ignored:
            alternatives = [self._symbol(f"ignored {number}", tree) for number, tree in enumerate(ignored)]
            whole, lines = "whole", [f"skip: ({' | '.join(alternatives)})*", "whole: skip r_start"]
            self._skip = " skip"
            self._symbols.clear()  # in rules, a skip follows these terminals
        for name in self._waiting:  # grows meanwhile
            lines += self._rule(name)
        return whole, [*lines, *self._split, *(f"{name}: {body}" for body, name in self._lexemes.items())]

    def _rule(self, name: str) -> list[str]:
        """Return the lines of a rule.

        ``s: s "+" s | x`` is written as ``x ("+" x)*``, which matches the same texts. In the first form, LLGuidance
        would compare all parses of a text.
        """
        body = self._definition.rules[name]
        alternatives = list(map(_bare, body.children if body.data == "expansions" else [body]))
        doubled = [each for each in filter(self._matches.has_text, alternatives) if _is_doubled(each, name)]
        others = self._expression(Tree("expansions", [each for each in alternatives if each not in doubled]))
        if not doubled:
            return [f"r_{name}: {others}"]
        between = self._expression(Tree("expansions", [Tree("expansion", each.children[1:-1]) for each in doubled]))
        return [f"r_{name}: p_{name} ({between} p_{name})*", f"p_{name}: {others}"]

    def _expression(self, node: Any) -> str:
        """Return a part of a rule."""
        match node.data, node.children:
            case ("expansions", alternatives):
                return f"({' | '.join(map(self._expression, filter(self._matches.has_text, alternatives)))})"
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
        items = self._definition.items_of(node)
        try:
            if is_plain(items, self._form, self._matches.alike):
                text = plain(items, self._form)
                return self._lexeme(f"/{text}/" if text else "")
            name = f"t{len(self._split)}"
            rules = run_rules(items, self._form, name, self._lexeme, self._matches.alike)
        except Untranslatable as error:
            raise untranslatable(text, error) from None
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
            raise too_costly(problem, "grammar_characters", _MAX_TEXT, self._written_text)


def _bare(node: Any) -> Any:
    """Unwrap a part of a rule: remove alias nodes, and ``expr`` nodes without a count."""
    while node.data == "alias" or (node.data == "expr" and node.children[1] is None):
        node = node.children[0]
    return node


def _is_doubled(alternative: Any, name: str) -> bool:
    """Return True if an alternative of a rule begins and ends with that rule itself."""
    if alternative.data != "expansion" or len(alternative.children) < 2:
        return False
    ends = map(_bare, (alternative.children[0], alternative.children[-1]))
    return all(part.data == "name" and part.children == [Token("RULE", name)] for part in ends)


def _repeated(given: list[Any]) -> str:
    if str(given[0]) in OPERATORS:
        return str(given[0])
    least, most = repeat_counts(given)
    return f"{{{least},{most}}}"
