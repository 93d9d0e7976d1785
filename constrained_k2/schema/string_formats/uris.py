"""Regexes for URIs, IRIs, their relative references and URI templates: RFC 3986, 3987 and 6570."""

from constrained_k2.schema.string_formats.hosts import IPV6_ADDRESS

_PERCENT = "%[0-9A-Fa-f]{2}"
_UNRESERVED = "A-Za-z0-9._~-"
_DELIMITERS = "!$&'()*+,;="
_PLANES = [(plane << 16, (plane << 16) + 0xFFFD) for plane in range(1, 14)]


def _ranges(*ranges: tuple[int, int]) -> str:
    return "".join(f"{chr(low)}-{chr(high)}" for low, high in ranges)


_UCS = _ranges((0xA0, 0xD7FF), (0xF900, 0xFDCF), (0xFDF0, 0xFFEF), *_PLANES, (0xE1000, 0xEFFFD))
# _UCS without the directional marks that RFC 3987, section 4.1, forbids.
_UNDIRECTED = _ranges(
    (0xA0, 0x200D), (0x2010, 0x2029), (0x202F, 0xD7FF), (0xF900, 0xFDCF), (0xFDF0, 0xFFEF), *_PLANES, (0xE1000, 0xEFFFD)
)
_PRIVATE = _ranges((0xE000, 0xF8FF), (0xF0000, 0xFFFFD), (0x100000, 0x10FFFD))


def _grammar(beyond: str, private: str) -> tuple[str, str]:
    """An absolute URI and a relative reference; ``private`` are the characters that only a query may have."""
    unreserved = f"{_DELIMITERS}{beyond}{_UNRESERVED}"
    name, user, no_colon, character = (f"(?:[{more}{unreserved}]|{_PERCENT})" for more in ("", ":", "@", ":@"))
    literal = rf"\[(?:{IPV6_ADDRESS}|[vV][0-9A-Fa-f]+\.[:{_DELIMITERS}{_UNRESERVED}]+)\]"
    path = f"(?:/{character}*)*"
    authority = f"//(?:{user}*@)?(?:{literal}|{name}*)(?::[0-9]*)?{path}"
    absolute = f"/(?:{character}+{path})?"
    tail = rf"(?:\?(?:[/?:@{private}{unreserved}]|{_PERCENT})*)?(?:#(?:[/?:@{unreserved}]|{_PERCENT})*)?"
    whole = f"[A-Za-z][A-Za-z0-9+.-]*:(?:{authority}|{absolute}|(?:{character}+{path})?){tail}"
    relative = f"(?:{authority}|{absolute}|(?:{no_colon}+{path})?){tail}"
    return whole, relative


_URI, _RELATIVE_URI = _grammar("", "")
URI, URI_REFERENCE = (f"^{_URI}$",), (f"^(?:{_URI}|{_RELATIVE_URI})$",)
_IRI, _RELATIVE_IRI = _grammar(_UNDIRECTED, _PRIVATE)
IRI, IRI_REFERENCE = (f"^{_IRI}$",), (f"^(?:{_IRI}|{_RELATIVE_IRI})$",)

_VARIABLE = rf"(?:[A-Za-z0-9_]|{_PERCENT})+(?:\.(?:[A-Za-z0-9_]|{_PERCENT})+)*(?::[1-9][0-9]{{0,3}}|[*])?"
_LITERALS = rf"[!#$&'(-;=?-\[\]_a-z~{_UCS}{_PRIVATE}]"
URI_TEMPLATE = (rf"^(?:{_LITERALS}|{_PERCENT}|\{{[+#./;?&]?{_VARIABLE}(?:,{_VARIABLE})*\}})*$",)
"""RFC 6570 with its erratum 6937 (an apostrophe is a literal), without the reserved operators."""
