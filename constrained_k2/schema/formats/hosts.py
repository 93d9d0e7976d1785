"""Host names, addresses and mailboxes as patterns: RFC 1123, 5321, 4291 and the dotted quads of RFC 2673."""

_ALNUM, _LDH = "[A-Za-z0-9]", "[A-Za-z0-9-]"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_QUAD = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_HEX = "[0-9A-Fa-f]{1,4}"


def _ipv6(most: int) -> str:
    """Addresses in which at most this many of the eight groups stand beside ``::``; a dotted quad counts as two."""
    last = f"(?:{_HEX}:{_HEX}|{_QUAD})"
    ways = [f"(?:{_HEX}:){{6}}{last}"]
    for before in range(most + 1):
        head = f"(?:{_HEX}(?::{_HEX}){{{before - 1}}})" if before else ""
        after = most - before
        tails = [f"(?:{_HEX}:){{0,{after - 2}}}{last}"] if after >= 2 else []
        tails += [_HEX] if after else []
        ways.append(f"{head}::(?:{'|'.join(tails)})?")
    return f"(?:{'|'.join(ways)})"


def label(first: str = _ALNUM) -> str:
    """An ASCII label of any length, without ``--`` in the third and fourth place.

    Only A-labels (``xn--``) have a meaning of those there, and which of them decode no regular expression can tell.
    """
    return f"{first}(?:{_LDH}?{_ALNUM}|{_LDH}{_ALNUM}{_LDH}*{_ALNUM}|{_LDH}-{_ALNUM}(?:{_LDH}*{_ALNUM})?)?"


IPV4_ADDRESS = _QUAD
"""Four bytes, without leading zeros."""

IPV6_ADDRESS = _ipv6(7)
"""RFC 4291, section 2.2, without a zone."""

IPV4 = (f"^{IPV4_ADDRESS}$",)
IPV6 = (f"^{IPV6_ADDRESS}$",)

HOSTNAME = (
    rf"^{label()}(?:\.{label()})*$",
    rf"^{_LDH}{{1,63}}(?:\.{_LDH}{{1,63}})*$",
    "^[A-Za-z0-9.-]{1,253}$",
)

_DOMAIN_LABEL = f"{_ALNUM}(?:{_LDH}{{0,61}}{_ALNUM})?"
_DOMAIN = rf"{_DOMAIN_LABEL}(?:\.{_DOMAIN_LABEL})*"
LITERAL = rf"\[(?:{_QUAD}|[Ii][Pp][Vv]6:{_ipv6(6)})\]"


def local(beyond: str = "") -> str:
    """A local part: a dotted or a quoted string.

    Args:
        beyond: Characters beyond ASCII that may stand in it, as the inside of a class.
    """
    atom = f"[{beyond}A-Za-z0-9!#$%&'*+/=?^_`{{|}}~-]+"
    return rf"(?:{atom}(?:\.{atom})*|" rf'"(?:[{beyond} !#-\[\]-~]|\\[ -~])*")'


EMAIL = (
    rf"^{local()}@(?:{_DOMAIN}|{LITERAL})$",
    r'^(?:[!#-?A-~]{1,64}|"[ -~]{0,62}")@[!-?A-~]{1,189}$',
)
"""``Mailbox`` of RFC 5321, with lengths that its section 4.5.3.1 makes every server take."""
