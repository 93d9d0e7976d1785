"""Formats as patterns: each accepts only what its definition does, some of them less (all ASCII, say)."""

_DAY = (
    r"(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    r"|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29)"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9]|-[A-Za-z0-9]){0,30}"  # no two hyphens in a row: those are reserved
_HOST = rf"{_LABEL}(?:\.{_LABEL}){{0,3}}"
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_IPV6 = r"(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}|::(?:[0-9a-fA-F]{1,4}:){0,5}[0-9a-fA-F]{1,4}|::"
_EMAIL = rf"[A-Za-z0-9_+-]{{1,30}}(?:\.[A-Za-z0-9_+-]{{1,30}})?@{_HOST}"
_SEGMENT = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*"
_TAIL = rf"(?:\?(?:{_SEGMENT}|[/?])*)?(?:#(?:{_SEGMENT}|[/?])*)?"
_URI = rf"[A-Za-z][A-Za-z0-9+.-]*:(?://{_HOST}(?::[0-9]{{1,5}})?)(?:/{_SEGMENT})*{_TAIL}"
_REFERENCE = rf"{_URI}|(?:/{_SEGMENT[:-1]}+)+{_TAIL}"
_POINTER = r"(?:/(?:[^~/]|~[01])*)*"
_DURATION = (
    r"P(?:[0-9]+W|(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)(?:T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?"
    r"|[0-9]+M(?:[0-9]+S)?|[0-9]+S))?|T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))"
)

FORMAT_PATTERNS: dict[str, str] = {
    name: f"^(?:{pattern})$"
    for name, pattern in {
        "date": _DAY,
        "time": _TIME,
        "date-time": rf"{_DAY}[tT]{_TIME}",
        "duration": _DURATION,
        "hostname": _HOST,
        "idn-hostname": _HOST,
        "ipv4": _IPV4,
        "ipv6": _IPV6,
        "email": _EMAIL,
        "idn-email": _EMAIL,
        "uuid": r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}",
        "uri": _URI,
        "iri": _URI,
        "uri-reference": _REFERENCE,
        "iri-reference": _REFERENCE,
        "uri-template": _REFERENCE,
        "json-pointer": _POINTER,
        "relative-json-pointer": rf"(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
        "regex": r"[A-Za-z0-9 _-]*",
    }.items()
}
"""Format -> pattern. Sources: RFC 3339, 5321, 1123, 2673, 4291, 4122, 3986, 6901; JSON Schema 2020-12, section 7.3."""

EXACT_FORMATS = frozenset({"date", "ipv4", "uuid", "json-pointer", "relative-json-pointer", "duration"})
"""Formats whose pattern accepts all that the definition does."""
