"""``Pattern`` of ECMA-262 with the flag ``u``, by recursive descent: the oracle for the format ``regex``."""

import re


class _NotARegexError(Exception):
    pass


class _Parser:
    """Reads one pattern, without properties (``\\p``) and modifiers."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.groups = 0
        self.highest = 0
        self.names: list[str] = []
        self.named: set[str] = set()

    def take(self, expression: str) -> str | None:
        found = re.compile(expression, re.DOTALL).match(self.text, self.at)
        if found is None:
            return None
        self.at = found.end()
        return found.group()

    def need(self, expression: str) -> str:
        found = self.take(expression)
        if found is None:
            raise _NotARegexError
        return found

    def whole(self) -> None:
        self.disjunction()
        if self.at < len(self.text) or self.highest > self.groups:
            raise _NotARegexError
        if len(set(self.names)) < len(self.names) or not self.named <= set(self.names):
            raise _NotARegexError

    def disjunction(self) -> None:
        while self.at < len(self.text) and self.text[self.at] != ")":
            if not self.take(r"\|"):
                self.term()

    def term(self) -> None:
        if self.take(r"\^|\$|\\[bB]"):
            return
        if self.take(r"\(\?<?[=!]"):
            self.disjunction()
            self.need(r"\)")
            return
        if self.take(r"\(\?:"):
            self.disjunction()
            self.need(r"\)")
        elif name := self.take(r"\(\?<[A-Za-z_$][\w$]*>"):
            self.names.append(name[3:-1])
            self.group()
        elif self.take(r"\((?!\?)"):
            self.group()
        elif self.take(r"\["):
            self.character_class()
        elif self.take(r"\\"):
            self.escape()
        else:
            self.need(r"[^\^$\\.*+?()\[\]{}|]|\.")
        if self.take(r"[*+?]\??"):
            return
        if counts := self.take(r"\{[0-9]+(,[0-9]*)?\}\??"):
            least, _, most = counts.rstrip("?")[1:-1].partition(",")
            if most and int(most) < int(least):
                raise _NotARegexError

    def group(self) -> None:
        self.groups += 1
        self.disjunction()
        self.need(r"\)")

    def escape(self) -> int | None:
        """An escape behind its backslash; the character it stands for, None for a class."""
        if self.take("[dDsSwW]"):
            return None
        if found := self.take("[1-9][0-9]*"):
            self.highest = max(self.highest, int(found))
        elif found := self.take("k<[A-Za-z_$][\\w$]*>"):
            self.named.add(found[2:-1])
        else:
            return self.character_escape()
        return None

    def character_escape(self) -> int:
        if found := self.take("[fnrtv]"):
            return {"f": 12, "n": 10, "r": 13, "t": 9, "v": 11}[found]
        if found := self.take("c[A-Za-z]"):
            return ord(found[1]) % 32
        if self.take("0(?![0-9])"):
            return 0
        if found := self.take("x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}"):
            return int(found[1:], 16)
        return ord(self.need(r"[\^$\\.*+?()\[\]{}|/]"))

    def class_atom(self) -> int | None:
        if not self.take(r"\\"):
            return ord(self.need(r"[^\\\]]"))
        if self.take("[dDsSwW]"):
            return None
        if self.take("b"):
            return 8
        if self.take("-"):
            return ord("-")
        return self.character_escape()

    def character_class(self) -> None:
        self.take(r"\^")
        while not self.take(r"\]"):
            low = self.class_atom()
            if self.take(r"-(?!\])"):
                high = self.class_atom()
                if low is None or high is None or high < low:
                    raise _NotARegexError


def is_regex(text: str) -> bool:
    parser = _Parser(text)
    try:
        parser.whole()
    except _NotARegexError:
        return False
    return True
