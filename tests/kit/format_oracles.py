"""Format checkers that use none of the package's patterns: the oracles for random strings and mutants."""

import datetime as dt
import ipaddress
import re
import string
import unicodedata
from collections.abc import Callable

import idna
import jsonschema

from tests.schema.ecma_oracle import is_regex

_DIGITS, _HEX, _ALNUM = set(string.digits), set(string.hexdigits), set(string.ascii_letters + string.digits)
_UNRESERVED, _DELIMITERS = _ALNUM | set("-._~"), set("!$&'()*+,;=")
_Ranges = list[tuple[int, int]]
_PLANES = [(plane << 16, (plane << 16) + 0xFFFD) for plane in range(1, 14)]
_UCS = [(0xA0, 0xD7FF), (0xF900, 0xFDCF), (0xFDF0, 0xFFEF), *_PLANES, (0xE1000, 0xEFFFD)]
_PRIVATE = [(0xE000, 0xF8FF), (0xF0000, 0xFFFFD), (0x100000, 0x10FFFD)]
_MARKS = frozenset({0x200E, 0x200F, *range(0x202A, 0x202F)})  # those of direction
_OCTETS = set(map(str, range(256)))
_PRINTABLE = set(map(chr, range(0x21, 0x7F)))
_LEAPS = {f"{year}-06-30" for year in (1972, 1981, 1982, 1983, 1985, 1992, 1993, 1994, 1997, 2012, 2015)}
_LEAPS |= {f"{year}-12-31" for year in (*range(1972, 1980), 1987, 1989, 1990, 1995, 1998, 2005, 2008, 2016)}


def _parts(shape: str, text: str) -> tuple[str, ...] | None:
    found = re.fullmatch(shape, text, re.ASCII | re.DOTALL)
    return found.groups() if found else None


def is_date(text: str) -> bool:
    if not (parts := _parts(r"(\d{4})-(\d\d)-(\d\d)", text)):
        return False
    year, month, day = map(int, parts)
    try:
        dt.date(year or 2000, month, day)  # the year 0 is a leap year as 2000 is
    except ValueError:
        return False
    return True


def is_time(text: str, day: str = "") -> bool:
    parts = _parts(r"(\d\d):(\d\d):(\d\d)(?:\.\d+)?(?:[zZ]|([+-])(\d\d):(\d\d))", text)
    if not parts:
        return False
    hour, minute, second, hours, minutes = (int(parts[at] or 0) for at in (0, 1, 2, 4, 5))
    if hour > 23 or minute > 59 or second > 60 or hours > 23 or minutes > 59:
        return False
    if second < 60:
        return True
    shift = dt.timedelta(hours=hours, minutes=minutes) * (-1 if parts[3] == "+" else 1)
    try:
        in_utc = dt.datetime.fromisoformat(f"{day or '2001-06-06'}T{hour:02}:{minute:02}:59") + shift
    except (ValueError, OverflowError):  # the year 0, or beyond 9999
        return False
    return (in_utc.hour, in_utc.minute) == (23, 59) and (not day or in_utc.date().isoformat() in _LEAPS)


def is_date_time(text: str) -> bool:
    return is_date(text[:10]) and text[10:11] in {"t", "T"} and is_time(text[11:], text[:10])


def is_duration(text: str) -> bool:
    if not text.startswith("P") or not text.isascii():
        return False
    days, mark, clock = text[1:].partition("T")
    units = [re.sub("[0-9]+", "", part) for part in (days, clock)]
    if any(re.sub("[0-9]+[A-Z]", "", part) for part in (days, clock)) or not days + clock or (mark and not clock):
        return False
    return (units[0] == "W" and not mark) or (units[0] in "YMD" and units[1] in "HMS")


def is_hostname(text: str) -> bool:
    labels = text.split(".")
    return len(text) <= 253 and all(
        0 < len(label) <= 63 and set(label) <= _ALNUM | {"-"} and label[0] != "-" != label[-1]
        and (label[:4].lower() != "xn--" or _is_alabel(label)) for label in labels
    )  # fmt: skip


def _is_alabel(label: str) -> bool:
    try:
        return idna.alabel(idna.ulabel(label)).decode() == label.lower()
    except idna.IDNAError:
        return False


def is_idn_hostname(text: str) -> bool:
    labels = re.split("[.\u3002\uff0e\uff61]", text)
    try:
        if not labels[-1] or len(idna.encode(".".join(labels))) > 253:
            return False
        if any(unicodedata.bidirectional(character) in {"R", "AL", "AN"} for character in text):
            for label in labels:
                idna.check_bidi(label, check_ltr=True)
    except idna.IDNAError:
        return False
    return True


def is_ipv4(text: str) -> bool:
    parts = text.split(".")
    return len(parts) == 4 and all(part in _OCTETS for part in parts)


def is_ipv6(text: str) -> bool:
    try:
        return "%" not in text and bool(ipaddress.IPv6Address(text))
    except ValueError:
        return False


def _is_mailbox(text: str, is_domain: Callable[[str], bool], *, ascii_only: bool) -> bool:
    local, at, domain = text.rpartition("@")
    if not at or (ascii_only and not text.isascii()) or len(local.encode()) > 64 or len(text.encode()) > 254:
        return False
    if local[:1] == '"':
        inner = re.sub(r"\\[ -~]", "", local[1:-1])
        if len(local) < 2 or local[-1] != '"' or any(c in '"\\' or not (" " <= c != "\x7f") for c in inner):
            return False
    elif any(not atom or any(c <= " " or c in '()<>[]:;@\\,."\x7f' for c in atom) for atom in local.split(".")):
        return False
    if domain.startswith("[") and domain.endswith("]"):
        tag, _, address = domain[1:-1].partition(":")
        return is_ipv4(domain[1:-1]) or (tag.lower() == "ipv6" and is_ipv6(address))
    return is_domain(domain)


def _is_ldh(text: str) -> bool:
    return all(set(label) <= _ALNUM | {"-"} and label.strip("-") == label != "" for label in text.split("."))


def is_email(text: str) -> bool:
    return _is_mailbox(text, _is_ldh, ascii_only=True)


def is_idn_email(text: str) -> bool:
    return _is_mailbox(text, lambda domain: _is_ldh(domain) or is_idn_hostname(domain), ascii_only=False)


def is_uuid(text: str) -> bool:
    return [len(part) for part in text.split("-")] == [8, 4, 4, 4, 12] and set(text) <= _HEX | {"-"}


def _made_of(text: str, allowed: set[str], ranges: _Ranges, without: frozenset[int] = _MARKS) -> bool:
    """True if a text consists of these characters, of those in the ranges except some, and of escapes."""
    others = {ord(character) for character in re.sub("%[0-9A-Fa-f]{2}", "", text) if character not in allowed}
    return not others & without and all(any(low <= each <= high for low, high in ranges) for each in others)


def _is_reference(text: str, *, absolute: bool, beyond: bool) -> bool:
    parts = _parts(r"(?:([^:/?#]+):)?(?://([^/?#]*))?([^?#]*)(?:\?([^#]*))?(?:#(.*))?", text)  # appendix B
    if parts is None:
        return False
    scheme, authority, path, query, fragment = parts
    ucs, private = (_UCS, _PRIVATE) if beyond else ([], [])
    if scheme is None and (absolute or text.startswith(":")):
        return False
    if scheme is not None and not (scheme[0] in string.ascii_letters and set(scheme) <= _ALNUM | set("+-.")):
        return False
    characters = _UNRESERVED | _DELIMITERS | set(":@/")
    return (
        _made_of(path, characters, ucs)
        and _made_of(fragment or "", characters | {"?"}, ucs)
        and _made_of(query or "", characters | {"?"}, ucs + private)
        and (authority is None or _is_authority(authority, ucs))
    )


def _is_authority(text: str, ucs: _Ranges) -> bool:
    user, _, location = text.rpartition("@")
    if not _made_of(user, _UNRESERVED | _DELIMITERS | {":"}, ucs):
        return False
    if not location.startswith("["):
        name, _, port = location.partition(":")
        return set(port) <= _DIGITS and _made_of(name, _UNRESERVED | _DELIMITERS, ucs)
    if not (parts := _parts(r"\[([^\]]*)\](?::\d*)?", location)):
        return False
    if future := _parts(r"[vV]([^.]+)\.(.+)", parts[0]):
        return set(future[0]) <= _HEX and set(future[1]) <= _UNRESERVED | _DELIMITERS | {":"}
    return is_ipv6(parts[0])


def is_uri_template(text: str) -> bool:
    literals = "".join(re.split(r"\{[^{}]*\}", text))
    if not _made_of(literals, _PRINTABLE - set('"%<>\\^`{|}'), _UCS + _PRIVATE, frozenset()):
        return False
    for expression in re.findall(r"\{([^{}]*)\}", text):
        for variable in (expression[1:] if expression[:1] in set("+#./;?&=,!@|") else expression).split(","):
            name, colon, length = variable.removesuffix("*").partition(":")
            if colon and (variable.endswith("*") or not re.fullmatch("[1-9][0-9]{0,3}", length)):
                return False
            parts = name.split(".")
            if not all(part and _made_of(part, _ALNUM | {"_"}, []) for part in parts):
                return False
    return True


def is_pointer(text: str) -> bool:
    return not text or (text[0] == "/" and all(after[:1] in {"0", "1"} for after in text.split("~")[1:]))


def is_relative_pointer(text: str) -> bool:
    parts = _parts(r"(0|[1-9]\d*)(.*)", text)
    return parts is not None and (parts[1] == "#" or is_pointer(parts[1]))


ORACLES: dict[str, Callable[[str], bool]] = {
    "date": is_date,
    "time": is_time,
    "date-time": is_date_time,
    "duration": is_duration,
    "hostname": is_hostname,
    "idn-hostname": is_idn_hostname,
    "ipv4": is_ipv4,
    "ipv6": is_ipv6,
    "email": is_email,
    "idn-email": is_idn_email,
    "uuid": is_uuid,
    "uri": lambda text: _is_reference(text, absolute=True, beyond=False),
    "iri": lambda text: _is_reference(text, absolute=True, beyond=True),
    "uri-reference": lambda text: _is_reference(text, absolute=False, beyond=False),
    "iri-reference": lambda text: _is_reference(text, absolute=False, beyond=True),
    "uri-template": is_uri_template,
    "json-pointer": is_pointer,
    "relative-json-pointer": is_relative_pointer,
    "regex": is_regex,
}

FORMAT_CHECKER = jsonschema.FormatChecker(formats=())
"""All of them for jsonschema, which checks few formats itself unless its optional libraries are installed."""

for _name, _oracle in ORACLES.items():
    FORMAT_CHECKER.checks(_name)(lambda value, judge=_oracle: not isinstance(value, str) or judge(value))
