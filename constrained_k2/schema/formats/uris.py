"""URIs, IRIs, their references and templates as patterns: RFC 3986, 3987 and 6570, by their grammars."""

from constrained_k2.schema.formats.hosts import IPV6_ADDRESS

_PERCENT = "%[0-9A-Fa-f]{2}"
_UNRESERVED = "A-Za-z0-9._~-"
_DELIMITERS = "!$&'()*+,;="
_PLANES = [(plane << 16, (plane << 16) + 0xFFFD) for plane in range(1, 14)]


def _ranges(*ranges: tuple[int, int]) -> str:
    return "".join(f"{chr(low)}-{chr(high)}" for low, high in ranges)


_UCS = _ranges((0xA0, 0xD7FF), (0xF900, 0xFDCF), (0xFDF0, 0xFFEF), *_PLANES, (0xE1000, 0xEFFFD))
# The same without the marks of direction, which RFC 3987 forbids in section 4.1.
_UNDIRECTED = _ranges(
    (0xA0, 0x200D), (0x2010, 0x2029), (0x202F, 0xD7FF), (0xF900, 0xFDCF), (0xFDF0, 0xFFEF), *_PLANES, (0xE1000, 0xEFFFD)
)
_PRIVATE = _ranges((0xE000, 0xF8FF), (0xF0000, 0xFFFFD), (0x100000, 0x10FFFD))


def _grammar(beyond: str, private: str) -> tuple[str, str]:
    """A scheme with what follows it, and a relative reference.

    Args:
        beyond: The characters beyond ASCII that may stand anywhere, as the inside of a class.
        private: Those that may stand in a query only.
    """
    unreserved = f"{_DELIMITERS}{beyond}{_UNRESERVED}"
    user, name = f"(?:[:{unreserved}]|{_PERCENT})", f"(?:[{unreserved}]|{_PERCENT})"
    character = f"(?:[:@{unreserved}]|{_PERCENT})"
    no_colon = f"(?:[@{unreserved}]|{_PERCENT})"
    literal = rf"\[(?:{IPV6_ADDRESS}|[vV][0-9A-Fa-f]+\.[:{_DELIMITERS}{_UNRESERVED}]+)\]"
    path = f"(?:/{character}*)*"
    authority = f"//(?:{user}*@)?(?:{literal}|{name}*)(?::[0-9]*)?{path}"
    absolute = f"/(?:{character}+{path})?"
    tail = rf"(?:\?(?:[/?:@{private}{unreserved}]|{_PERCENT})*)?(?:#(?:[/?:@{unreserved}]|{_PERCENT})*)?"
    whole = f"[A-Za-z][A-Za-z0-9+.-]*:(?:{authority}|{absolute}|(?:{character}+{path})?){tail}"
    relative = f"(?:{authority}|{absolute}|(?:{no_colon}+{path})?){tail}"
    return whole, relative


_URI, _RELATIVE_URI = _grammar("", "")
_IRI, _RELATIVE_IRI = _grammar(_UNDIRECTED, _PRIVATE)

URI, URI_REFERENCE = (f"^{_URI}$",), (f"^(?:{_URI}|{_RELATIVE_URI})$",)
"""RFC 3986, appendix A."""

IRI, IRI_REFERENCE = (f"^{_IRI}$",), (f"^(?:{_IRI}|{_RELATIVE_IRI})$",)
"""RFC 3987, section 2.2, without the marks of direction."""

_VARIABLE = rf"(?:[A-Za-z0-9_]|{_PERCENT})+(?:\.(?:[A-Za-z0-9_]|{_PERCENT})+)*(?::[1-9][0-9]{{0,3}}|[*])?"
_LITERALS = rf"[!#$&'(-;=?-\[\]_a-z~{_UCS}{_PRIVATE}]"
URI_TEMPLATE = (rf"^(?:{_LITERALS}|{_PERCENT}|\{{[+#./;?&]?{_VARIABLE}(?:,{_VARIABLE})*\}})*$",)
"""RFC 6570 with its erratum 6937 (an apostrophe is a literal); no operators of its reserve."""
