"""Call ids: the tokens that may continue one, against all tokens."""

from constrained_k2 import Vocabulary
from constrained_k2.formats.kimi_k2 import MARKER_TEXTS
from constrained_k2.turn.call_id import CallIdTrie, NameEndings

BYTES = Vocabulary.of_bytes()
NAMES = ("get_weather", "get", "get_weather:0", "查询", "a b", "🌦️-tool", "x:y", "x")


def test_call_ids_against_all_tokens(small_vocabulary: Vocabulary) -> None:
    call_ids = CallIdTrie(NAMES, small_vocabulary).with_index(10)
    whole = {f"functions.{name}:10".encode(): name for name in NAMES}
    prefixes = {call_id[:cut] for call_id in whole for cut in range(len(call_id) + 1)}
    for prefix in sorted(prefixes):
        expected = {
            token
            for token in range(small_vocabulary.size)
            if (raw := small_vocabulary.ordinary_bytes(token)) and prefix + raw in prefixes
        }
        if prefix in whole:
            expected.add(small_vocabulary.format.argument_begin)
        assert set(call_ids.allowed(prefix).listed) == expected
        assert call_ids.name_of(prefix) == whole.get(prefix)
        going_on = [name for call_id, name in whole.items() if call_id.startswith(prefix)]
        count, name = call_ids.candidates(prefix)
        assert count == len(going_on)
        assert name in going_on
    assert call_ids.candidates(b"functions.set") == (0, "")


def test_call_ids_with_the_highest_bytes() -> None:
    tokens = {byte: bytes((byte,)) for byte in range(256)} | {256: "\U0010ffff".encode(), 257: b"\xff\xff"}
    special = {text: 258 + number for number, text in enumerate(MARKER_TEXTS.values())}
    vocabulary = Vocabulary(tokens, special, 300, BYTES.encoder)
    call_ids = CallIdTrie(("\U0010ffff",), vocabulary).with_index(0)
    assert set(call_ids.allowed(b"functions.").listed) == {0xF4, 256}


class _Bytes:
    def encode(self, text: str) -> list[int]:
        return list(text.encode())


def test_tokens_that_run_out_of_a_name_into_the_index() -> None:
    longer = ["x:1", "x:12", ":1", "1:", "1:1", "12", "f:1:2", "1:12", "x:", "a:1", "123", "x:2"]
    tokens = {byte: bytes((byte,)) for byte in range(256)} | {
        256 + number: text.encode() for number, text in enumerate(longer)
    }
    special = {text: 300 + number for number, text in enumerate(MARKER_TEXTS.values())}
    vocabulary = Vocabulary(tokens, special, 320, BYTES.encoder)
    ends = NameEndings()
    for names in (("x",), ("x", "x:1", "f", "f:1", "a", "fx"), ("ax", "f:1", "x:1", "1", "y:1"), ("x", "fx:1")):
        check_every_prefix(names, vocabulary, tokens, ends)


def check_every_prefix(
    names: tuple[str, ...], vocabulary: Vocabulary, tokens: dict[int, bytes], ends: NameEndings
) -> None:
    trie = CallIdTrie(names, vocabulary, ends)
    for index in (0, 1, 12, 2, 123, 12):  # one trie for all of them
        call_ids = trie.with_index(index)
        whole = {f"functions.{name}:{index}".encode(): name for name in names}
        prefixes = {call_id[:cut] for call_id in whole for cut in range(len(call_id) + 1)}
        for prefix in sorted(prefixes):
            expected = {token for token, raw in tokens.items() if prefix + raw in prefixes}
            if prefix in whole:
                expected.add(vocabulary.format.argument_begin)
            assert set(call_ids.allowed(prefix).listed) == expected, (index, prefix)
            going_on = [call_id for call_id in whole if call_id.startswith(prefix)]
            assert call_ids.candidates(prefix)[0] == len(going_on)
            ahead, is_whole = call_ids.forced(prefix)
            assert all(call_id.startswith(prefix + ahead) for call_id in going_on)
            assert is_whole == (len(going_on) == 1)
