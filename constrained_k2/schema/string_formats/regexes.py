r"""The format ``regex``: patterns that match only ECMA-262 regexes valid with and without flag ``u``.

They reject some valid regexes. One pattern checks the sequence of tokens (what may be repeated, what a class contains),
another one the parentheses.
"""

_SYNTAX = r"[$(-+./?\[-\^{-}]"
_HEX = "[0-9A-Fa-f]"
_BEYOND = "\u0080-\U0010ffff"
_ESCAPED = rf"[dDsSwWfnrtv]|c[A-Za-z]|x{_HEX}{{2}}|u(?:[0-9A-CE-Fa-ce-f]{_HEX}|[Dd][0-7]){_HEX}{{2}}|{_SYNTAX}"


def _ordered(first: str, last: str) -> str:
    """A range of characters in ascending order."""
    return "|".join(f"{chr(code)}-[{chr(code)}-{last}]" for code in range(ord(first), ord(last) + 1))


def _counts() -> str:
    """Two numbers in ascending order, with at most two digits in the first and three in the second."""
    ones = "|".join(f"{one},(?:[{one}-9]|[1-9][0-9]{{1,2}})" for one in range(10))
    tens = [
        f"{ten}(?:{'|'.join(f'{one},{ten}[{one}-9]' for one in range(10))})" for ten in range(1, 10)
    ] + [f"{ten}[0-9],[{ten + 1}-9][0-9]" for ten in range(1, 9)]  # fmt: skip
    return f"{ones}|{'|'.join(tens)}|[1-9][0-9],[1-9][0-9]{{2}}"


_RANGE = rf"{_ordered('0', '9')}|{_ordered('A', 'Z')}|{_ordered('a', 'z')}"
_CLASS = rf"\[\^?-?(?:{_RANGE}|[ -,.-\[_-~{_BEYOND}]|\\(?:{_ESCAPED}|[b-]))*-?\]"
_QUANTIFIER = rf"(?:[*+?]|\{{(?:[0-9]{{1,3}},?|{_counts()})\}})\??"
_NAME = "[A-Za-z_$][A-Za-z0-9_$]*"
_ATOM = rf"(?:[ -#%-',->@-Z_-z~{_BEYOND}]|\\(?:{_ESCAPED})|{_CLASS}|\))"
_NO_ATOM = rf"[|^$]|\\[bB]|\((?:\?(?:[:=!]|<[=!]|<{_NAME}>))?"
_TOKENS = f"^(?:{_ATOM}(?:{_QUANTIFIER})?|{_NO_ATOM})*$"

_PLAIN = rf"[ -',->@-Z\]-z|-~{_BEYOND}]|\\[ -~]|\[(?:[ -\[^-~{_BEYOND}]|\\[ -~])*\]"


def _nested(depth: int) -> str:
    """The content of parentheses: no quantifier at its start or after an assertion."""
    if not depth:
        return rf"(?:(?:{_PLAIN})[*+?{{]*)*"
    inner = _nested(depth - 1)
    return rf"(?:(?:{_PLAIN}|\((?:\?:)?{inner}\))[*+?{{]*|\(\?<?[=!]{inner}\))*"


_PARENTHESES = rf"^{_nested(3)}(?:\(\?<{_NAME}>{_nested(2)}\)[*+?{{]*{_nested(3)})?$"

REGEX = (_TOKENS, _PARENTHESES)
"""``Pattern``, with parentheses at most three deep and at most one named group, which is not inside another."""
