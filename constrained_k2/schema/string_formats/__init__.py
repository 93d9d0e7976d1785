"""JSON Schema's formats (``date``, ``uri``, …) as regexes that never accept an invalid string.

Some reject valid strings.

Sources: RFC 3339, 1123, 5890 to 5893, 2673, 4291, 5321, 6531, 4122, 3986, 3987, 6570, 6901, ECMA-262.
"""

from collections.abc import Collection
from typing import NamedTuple

from constrained_k2.schema.string_formats import hosts, regexes, times, uris


class Format(NamedTuple):
    """One format: a string must match all ``patterns``."""

    patterns: tuple[str, ...]
    left_out: str = ""  # valid strings that the patterns reject; empty if they are exact


_YEAR_0 = "the year 0000, which many parsers refuse"
_POINTER = r"(?:/(?:[^~/]|~[01])*)*"
_LITERAL = "leading zeros and tags other than IPv6 in address literals"
_LETTERS = (
    "A-labels (xn--), names of more than 4 labels, labels of more than 15 characters (in some scripts 12) with letters"
    " beyond ASCII, and scripts other than Latin, Greek, Cyrillic, Devanagari, Japanese, Hangul, Hebrew and Arabic"
)

FORMATS = {
    "date": Format(times.DATE, _YEAR_0),
    "time": Format(times.TIME),
    "date-time": Format(times.DATE_TIME, _YEAR_0),
    "duration": Format(times.DURATION),
    "hostname": Format(hosts.HOSTNAME, "labels with -- in the third and fourth place, as xn--"),
    "idn-hostname": Format(hosts.IDN_HOSTNAME, _LETTERS),
    "ipv4": Format(hosts.IPV4),
    "ipv6": Format(hosts.IPV6),
    "email": Format(hosts.EMAIL, f"more than 64 characters before the @ or 189 after it, {_LITERAL}"),
    "idn-email": Format(
        hosts.IDN_EMAIL,
        f"more than 64 characters in ASCII before the @ or 16 beyond it, {_LITERAL}, in the domain labels of more than"
        f" 45 characters (the first one 48), {_LETTERS}",
    ),
    "uuid": Format((r"^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$",)),
    "uri": Format(uris.URI),
    "iri": Format(uris.IRI),
    "uri-reference": Format(uris.URI_REFERENCE),
    "iri-reference": Format(uris.IRI_REFERENCE),
    "uri-template": Format(uris.URI_TEMPLATE, "the reserved operators = , ! @ |"),
    "json-pointer": Format((f"^{_POINTER}$",)),
    "relative-json-pointer": Format((f"^(?:0|[1-9][0-9]*)(?:#|{_POINTER})$",)),
    "regex": Format(
        regexes.REGEX,
        "back-references, \\p, \\0, \\u{…}, parentheses over three deep, more than one named group, counts over 999,"
        " control characters, and ranges in classes but between two digits or two letters of one case",
    ),
}
"""The formats of JSON Schema 2020-12, section 7.3."""


def patterns_of(names: Collection[str]) -> list[str]:
    """The patterns of several formats, in the same order in every process."""
    return sorted({pattern for name in names for pattern in FORMATS[name].patterns}) if names else []
