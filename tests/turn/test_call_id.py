"""Call ids: the tokens that may continue one, against all tokens."""

import pytest

from constrained_k2 import Vocabulary
from constrained_k2.formats.kimi_k2 import MARKER_TEXTS
from constrained_k2.turn.call_id import CallIdTrie, NameEndings

BYTES = Vocabulary.of_bytes()
K2_NAMES = {name: name for name in ("get_weather", "get", "get_weather:0", "查询", "a b", "🌦️-tool", "x:y", "x")}
K3_NAMES = {"get_weather": "get_weather", "get": "get", 'a"b&c': "a&quot;b&amp;c", "查询": "查询", 'x" index="1': "x&quot; index=&quot;1"}  # fmt: skip
"""Name -> as headers spell it."""


@pytest.mark.parametrize(
    ("which", "names", "header", "index"),
    [("small_compiler", K2_NAMES, "functions.{}:{}", 10),
     *(("k3_small_compiler", K3_NAMES, 'call tool="{}" index="{}"', index) for index in (1, 2, 12, 123))],
    ids=["Kimi K2, 10", *(f"Kimi K3, {index}" for index in (1, 2, 12, 123))],
)  # fmt: skip
def test_call_ids_against_all_tokens(
    which: str, names: dict[str, str], header: str, index: int, request: pytest.FixtureRequest
) -> None:
    vocabulary: Vocabulary = request.getfixturevalue(which).vocabulary
    tokens = {token: raw for token in range(vocabulary.size) if (raw := vocabulary.ordinary_bytes(token))}
    trie = CallIdTrie(tuple(names), vocabulary)
    check_every_prefix(
        trie, {header.format(spelled, index).encode(): name for name, spelled in names.items()}, index, tokens
    )
    assert trie.with_index(index).candidates(b"functions.set") == (0, "")


def test_call_ids_with_the_highest_bytes() -> None:
    tokens = {byte: bytes((byte,)) for byte in range(256)} | {256: "\U0010ffff".encode(), 257: b"\xff\xff"}
    special = {text: 258 + number for number, text in enumerate(MARKER_TEXTS.values())}
    vocabulary = Vocabulary(tokens, special, 300, BYTES.encoder)
    call_ids = CallIdTrie(("\U0010ffff",), vocabulary).with_index(0)
    assert set(call_ids.allowed(b"functions.").listed) == {0xF4, 256}


def test_tokens_that_run_out_of_a_name_into_the_index() -> None:
    longer = ["x:1", "x:12", ":1", "1:", "1:1", "12", "f:1:2", "1:12", "x:", "a:1", "123", "x:2"]
    tokens = {byte: bytes((byte,)) for byte in range(256)} | {
        256 + number: text.encode() for number, text in enumerate(longer)
    }
    special = {text: 300 + number for number, text in enumerate(MARKER_TEXTS.values())}
    vocabulary = Vocabulary(tokens, special, 320, BYTES.encoder)
    ends = NameEndings()
    for names in (("x",), ("x", "x:1", "f", "f:1", "a", "fx"), ("ax", "f:1", "x:1", "1", "y:1"), ("x", "fx:1")):
        trie = CallIdTrie(names, vocabulary, ends)
        for index in (0, 1, 12, 2, 123, 12):  # one trie for all of them
            check_every_prefix(trie, {f"functions.{name}:{index}".encode(): name for name in names}, index, tokens)


def check_every_prefix(trie: CallIdTrie, whole: dict[bytes, str], index: int, tokens: dict[int, bytes]) -> None:
    """The answers about each prefix of these headers, against all tokens."""
    call_ids = trie.with_index(index)
    prefixes = {header[:cut] for header in whole for cut in range(len(header) + 1)}
    for prefix in sorted(prefixes):
        expected = {token for token, raw in tokens.items() if prefix + raw in prefixes}
        if prefix in whole:
            expected.add(trie.vocabulary.format.argument_begin)
        assert set(call_ids.allowed(prefix).listed) == expected, (index, prefix)
        assert call_ids.name_of(prefix) == whole.get(prefix)
        going_on = [header for header in whole if header.startswith(prefix)]
        count, name = call_ids.candidates(prefix)
        assert count == len(going_on) and name in map(whole.get, going_on)
        ahead, is_whole = call_ids.forced(prefix)
        assert all(header.startswith(prefix + ahead) for header in going_on)
        assert is_whole == (len(going_on) == 1)
