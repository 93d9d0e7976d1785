"""Regexes for host names, IP addresses and email addresses, ASCII or internationalized (IDNA 2008).

Sources: RFC 1123, 2673 (dotted quads), 4291 and 5321. Beyond ASCII, the regexes match a subset of RFC 5890 to 5893
(IDNA 2008) and of RFC 6531: the letters of scripts in which a character is allowed at any position, is composed (NFC)
in any order, and is the same in every version of Unicode. Labels are short enough that their A-label has at most 63
octets.
"""

_ALNUM, _LDH = "[A-Za-z0-9]", "[A-Za-z0-9-]"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
IPV4_ADDRESS = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_HEX = "[0-9A-Fa-f]{1,4}"


def _ipv6(most: int) -> str:
    """Addresses with at most ``most`` of the eight groups if ``::`` is used; a dotted quad counts as two groups."""
    last = f"(?:{_HEX}:{_HEX}|{IPV4_ADDRESS})"
    alternatives = [f"(?:{_HEX}:){{6}}{last}"]
    for before in range(most + 1):
        head = f"(?:{_HEX}(?::{_HEX}){{{before - 1}}})" if before else ""
        after = most - before
        tails = [f"(?:{_HEX}:){{0,{after - 2}}}{last}"] if after >= 2 else []
        tails += [_HEX] if after else []
        alternatives.append(f"{head}::(?:{'|'.join(tails)})?")
    return f"(?:{'|'.join(alternatives)})"


def _label(first: str = _ALNUM) -> str:
    """An ASCII label of any length, without ``--`` as its third and fourth characters.

    Only A-labels (``xn--``) may have that, and a regular expression cannot tell which A-labels decode.
    """
    return f"{first}(?:{_LDH}?{_ALNUM}|{_LDH}{_ALNUM}{_LDH}*{_ALNUM}|{_LDH}-{_ALNUM}(?:{_LDH}*{_ALNUM})?)?"


IPV6_ADDRESS = _ipv6(7)
"""RFC 4291, section 2.2, without a zone."""
IPV4 = (f"^{IPV4_ADDRESS}$",)
IPV6 = (f"^{IPV6_ADDRESS}$",)
HOSTNAME = (rf"^{_label()}(?:\.{_label()})*$", rf"^{_LDH}{{1,63}}(?:\.{_LDH}{{1,63}})*$", "^[A-Za-z0-9.-]{1,253}$")

_DOMAIN_LABEL = f"{_ALNUM}(?:{_LDH}{{0,61}}{_ALNUM})?"
_DOMAIN = rf"{_DOMAIN_LABEL}(?:\.{_DOMAIN_LABEL})*"
_LITERAL = rf"\[(?:{IPV4_ADDRESS}|[Ii][Pp][Vv]6:{_ipv6(6)})\]"


def _local(beyond: str = "") -> str:
    """A local part, dotted or quoted; ``beyond`` are its characters outside ASCII, as the inside of a class."""
    atom = f"[{beyond}A-Za-z0-9!#$%&'*+/=?^_`{{|}}~-]+"
    return rf"(?:{atom}(?:\.{atom})*|" rf'"(?:[{beyond} !#-\[\]-~]|\\[ -~])*")'


EMAIL = (rf"^{_local()}@(?:{_DOMAIN}|{_LITERAL})$", r'^(?:[!#-?A-~]{1,64}|"[ -~]{0,62}")@[!-?A-~]{1,189}$')
"""``Mailbox`` of RFC 5321, with lengths that every server accepts by its section 4.5.3.1."""

_LATIN = (
    "\u00df-\u00f6\u00f8-\u00ff\u0101\u0103\u0105\u0107\u0109\u010b\u010d\u010f\u0111\u0113\u0115\u0117\u0119\u011b"
    "\u011d\u011f\u0121\u0123\u0125\u0127\u0129\u012b\u012d\u012f\u0131\u0135\u0137\u013a\u013c\u013e\u0142\u0144\u0146"
    "\u0148\u014b\u014d\u014f\u0151\u0153\u0155\u0157\u0159\u015b\u015d\u015f\u0161\u0163\u0165\u0167\u0169\u016b\u016d"
    "\u016f\u0171\u0173\u0175\u0177\u017a\u017c\u017e"
)
_GREEK = "\u0390\u03ac-\u03ce"
_CYRILLIC = "\u0430-\u045f\u0491"
_DEVANAGARI, _DEVANAGARI_MARK = "\u0904-\u0939\u0960-\u0961", "\u0901-\u0903\u093e-\u094c\u0962-\u0963\u0966-\u096f"
_JAPANESE = "\u3005\u3007\u3041-\u3096\u309d-\u309e\u30a1-\u30fa\u30fc-\u30fe\u4e00-\u9fa5"
_HANGUL = "\uac00-\ud7a3"
_TIBETAN = "\u0f0b"  # its mark between syllables, an exception of RFC 5892
_HEBREW = "\u05d0-\u05ea"
_ARABIC = "\u0620-\u063f\u0641-\u064a\u066e-\u066f\u0671-\u0674\u0679-\u06d3\u06d5\u06fa-\u06ff"
_JOINING_BOTH = "\u0626\u0628\u062a-\u062e\u0633-\u063a\u0641-\u0647\u0649-\u064a\u067e\u0686\u06a9\u06af\u06cc"
_JOINING = f"{_JOINING_BOTH}\u0622-\u0625\u0627\u0629\u062f-\u0632\u0648\u0698"
_KANA_DOT, _NON_JOINER, _JOINER, _VIRAMA = "\u30fb", "\u200c", "\u200d", "\u094d"

_LETTER = f"a-z0-9{_LATIN}{_GREEK}{_CYRILLIC}{_DEVANAGARI}{_JAPANESE}{_HANGUL}{_TIBETAN}"


def _any(*alternatives: str) -> str:
    return "|".join(alternatives)


def _hyphened(first: str, inner: str) -> str:
    return f"(?:{first})(?:-?(?:{inner}))*"


# Contextual rules of RFC 5892: the middle dot, the keraia, the virama and the Katakana middle dot.
_LEFT_TO_RIGHT = _any(
    _hyphened(f"[{_LETTER}]", f"[{_LETTER}]"),
    _hyphened("l\u00b7l|[a-z0-9]", "l\u00b7l|[a-z0-9]"),
    _hyphened(f"[{_GREEK}](?:\u0375[{_GREEK}])?", f"[{_GREEK}](?:\u0375[{_GREEK}])?"),
    f"[{_DEVANAGARI}](?:[{_DEVANAGARI}{_DEVANAGARI_MARK}]|{_VIRAMA}[{_NON_JOINER}{_JOINER}]?[{_DEVANAGARI}])*",
    f"{_KANA_DOT}*[{_JAPANESE}][{_JAPANESE}{_KANA_DOT}]*",
    "[0-9\u06f0-\u06f9]+",
)
# RFC 5893, section 2: a right-to-left label has digits of one kind, and none of them first.
_RIGHT_TO_LEFT = _any(
    _hyphened(f"[{_HEBREW}][\u05f3\u05f4]?", f"[{_HEBREW}][\u05f3\u05f4]?|[0-9]"),
    _hyphened(f"[{_ARABIC}]", f"[{_ARABIC}0-9]"),
    _hyphened(f"[{_ARABIC}]", f"[{_ARABIC}\u0660-\u0669]"),
    f"[{_ARABIC}]*(?:[{_JOINING_BOTH}]{_NON_JOINER}[{_JOINING}][{_ARABIC}]*)+",
)
_LENGTH = "(?:[a-z0-9\u00b7-\u097f-]{1,15}|[a-z0-9\u00b7-\ud7a3-]{1,12})"


def _name(dot: str) -> str:
    """Labels of any length; beside a right-to-left label none begins with a digit."""
    forward, mixed = f"(?:{_label()}|{_LEFT_TO_RIGHT})", f"(?:{_label('[A-Za-z]')}|{_RIGHT_TO_LEFT})"
    return f"{forward}(?:{dot}{forward})*|{mixed}(?:{dot}{mixed})*"


def _lengths(dot: str, first: int, later: int) -> str:
    """At most four labels. An ASCII label has at most ``first`` characters if it is the first, else ``later``.

    As an A-label, any 15 letters below U+0980 need at most 62 octets, and so do any 12 of all letters here.
    """
    return f"(?:{_LDH}{{1,{first}}}|{_LENGTH})(?:{dot}(?:{_LDH}{{1,{later}}}|{_LENGTH})){{0,3}}"


_DOT = "[.\u3002\uff0e\uff61]"
IDN_HOSTNAME = (f"^(?:{_name(_DOT)})$", f"^{_lengths(_DOT, 63, 62)}$")
_BEYOND = "\u0080-\U0010ffff"
_LOCAL_LENGTH = '(?:[!#-?A-~]{1,64}|[!#-?A-~\u0080-\U0010ffff]{1,16}|"(?:[ -~]{0,62}|[ -~\u0080-\U0010ffff]{0,15})")'
IDN_EMAIL = (
    rf"^{_local(_BEYOND)}@(?:{_name('[.]')}|{_LITERAL})$",
    rf"^{_LOCAL_LENGTH}@(?:{_lengths('[.]', 48, 45)}|\[[A-Za-z0-9:.]{{1,50}}\])$",
)
"""``Mailbox`` of RFC 6531, with the lengths of RFC 5321: 64 octets before the @ and 254 in all."""
