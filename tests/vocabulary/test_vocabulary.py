"""Vocabularies of tokenizer files and objects: ids, texts, sizes, and what is refused; sets of tokens."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from constrained_k2 import KIMI_K2, FormatMismatch, InvalidRequest, Vocabulary
from constrained_k2.formats.kimi_k2 import MARKER_TEXTS
from constrained_k2.testing import write_tokenizer
from constrained_k2.vocabulary.bitmask import TokenSet, allocate_bitmask, allowed_ids
from constrained_k2.vocabulary.tokenizer_files import TiktokenEncoder, _byte_alphabet

TEXT = '{"city": "北京", "n": 007}  \n\tça 🌦️ <|im_end|> <think> don\'t'


def test_the_real_vocabulary(real_vocabulary: Vocabulary) -> None:
    assert real_vocabulary.size == 163_840
    assert real_vocabulary.format == KIMI_K2
    assert real_vocabulary.unordinary_ids == tuple(range(163_584, 163_840))
    assert real_vocabulary.token_bytes(163_595) == b"<|tool_calls_section_begin|>"
    assert real_vocabulary.special_text(163_589) == "<|reserved_token_163589|>"
    ids = real_vocabulary.encode(TEXT)
    assert max(ids) < 163_584
    assert real_vocabulary.decode(ids) == TEXT


@given(st.text(max_size=60))
def test_text_round_trips_in_ordinary_tokens(small_vocabulary: Vocabulary, text: str) -> None:
    try:
        ids = small_vocabulary.encode(text)
    except InvalidRequest:
        assert any("\ud800" <= character <= "\udfff" for character in text)
        return
    assert all(map(small_vocabulary.is_ordinary, ids))
    assert small_vocabulary.decode(ids) == text


@pytest.mark.parametrize("text", ["a" * 60_000, " " * 60_000, "ab " * 30_000, "\n" * 25_001])
def test_long_texts_are_encoded_in_pieces(small_vocabulary: Vocabulary, text: str) -> None:
    assert small_vocabulary.decode(small_vocabulary.encode(text)) == text


@pytest.mark.parametrize("token_id", [-1, 10**6, 10**30])
def test_ids_out_of_range(small_vocabulary: Vocabulary, token_id: int) -> None:
    with pytest.raises(InvalidRequest, match=r"not in the vocabulary \(0 to"):
        small_vocabulary.token_bytes(token_id)
    with pytest.raises(InvalidRequest):
        small_vocabulary.decode([1, token_id])
    assert not small_vocabulary.is_ordinary(token_id)


def test_width_comes_from_the_model_and_holes_are_never_ordinary(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    narrow = Vocabulary.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"vocab_size": narrow.size + 64}}))
    wide = Vocabulary.from_pretrained(tmp_path)
    assert wide.size == narrow.size + 64
    assert wide.unordinary_ids[-64:] == tuple(range(narrow.size, wide.size))
    assert wide.token_bytes(wide.size - 1) == b""
    with pytest.raises(FormatMismatch, match="outside the model's 100 logits"):
        Vocabulary.from_pretrained(tmp_path, size=100)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tiktoken.model", "", "no tokens"),
        ("tiktoken.model", "YQ== x", "not a tiktoken vocabulary"),
        ("tiktoken.model", "!! 1", "not a tiktoken vocabulary"),
        ("tokenizer_config.json", "{", "cannot be read as JSON"),
        ("tokenizer_config.json", '{"added_tokens_decoder": []}', "unexpected form"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"1024": {}}}', "unexpected form"),
        ("config.json", '{"vocab_size": "many"}', "unexpected form"),
        ("config.json", '{"text_config": null}', "unexpected form"),
        ("tokenizer_config.json", "[]", "not a JSON object"),
        ("tokenizer_config.json", "{}", "no single special token for <|tool_calls_section_begin|>"),
    ],
)
def test_broken_files(tmp_path: Path, name: str, content: str, message: str) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(FormatMismatch, match=message.replace("|", r"\|")):
        Vocabulary.from_pretrained(tmp_path)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(FormatMismatch, match="no tokenizer there"):
        Vocabulary.from_pretrained(tmp_path)


def byte_level_document(vocabulary: Vocabulary, markers: list[str]) -> str:
    """A ``tokenizer.json`` with the same merges, as converters write it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    assert isinstance(vocabulary.encoder, TiktokenEncoder)
    ranks = vocabulary.encoder.ranks
    letters = {byte: letter for letter, byte in _byte_alphabet().items()}
    spelled = {raw: "".join(letters[byte] for byte in raw) for raw in ranks}
    merges = []
    for raw, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(raw) > 1:
            halves = ((raw[:cut], raw[cut:]) for cut in range(1, len(raw)))
            left, right = min(
                (pair for pair in halves if all(ranks.get(half, rank) < rank for half in pair)),
                key=lambda pair: max(ranks[pair[0]], ranks[pair[1]]),
            )
            merges.append((spelled[left], spelled[right]))
    tokenizer = Tokenizer(models.BPE(vocab={spelled[raw]: rank for raw, rank in ranks.items()}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(markers)
    document: str = tokenizer.to_str()
    return document


def test_a_tokenizer_json(small_vocabulary: Vocabulary, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(byte_level_document(small_vocabulary, list(MARKER_TEXTS.values())))
    vocabulary = Vocabulary.from_pretrained(tmp_path)
    ordinary = range(small_vocabulary.size - len(small_vocabulary.unordinary_ids))
    assert vocabulary.size == len(ordinary) + len(MARKER_TEXTS)
    assert [*map(vocabulary.token_bytes, ordinary)] == [*map(small_vocabulary.token_bytes, ordinary)]
    ids = vocabulary.encode(TEXT)
    assert all(map(vocabulary.is_ordinary, ids))  # marker text stays text
    assert vocabulary.decode(ids) == TEXT


@pytest.mark.slow
def test_a_fast_tokenizer_object(small_vocabulary: Vocabulary, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers comes with vLLM, which is not installed")
    path = tmp_path / "tokenizer.json"
    path.write_text(byte_level_document(small_vocabulary, list(MARKER_TEXTS.values())))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path))
    assert Vocabulary.from_tokenizer(fast, size=5000).size == 5000


def test_another_models_tokenizer(small_vocabulary: Vocabulary, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(byte_level_document(small_vocabulary, ["<s>", "</s>"]))
    both = r"<\|tool_calls_section_begin\|>.*\(Kimi K2\), nor for <\|open\|>.*\(Kimi K3\)"
    with pytest.raises(FormatMismatch, match=both):
        Vocabulary.from_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"type": "Unigram"}}))
    with pytest.raises(FormatMismatch, match="not a byte-level BPE"):
        Vocabulary.from_pretrained(tmp_path)


def test_what_transformers_resolves(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers comes with vLLM, which is not installed")
    write_tokenizer(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=True)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    assert vocabulary.encode(TEXT) == Vocabulary.from_pretrained(tmp_path).encode(TEXT)
    with pytest.raises(FormatMismatch, match="neither Kimi's"):
        Vocabulary.from_tokenizer(object())


@given(st.integers(1, 200), st.sets(st.integers(0, 199)), st.booleans())
def test_token_sets(size: int, ids: set[int], complement: bool) -> None:
    ids = {token for token in ids if token < size}
    tokens = TokenSet(ids, size, complement=complement)
    expected = sorted(set(range(size)) - ids if complement else ids)
    row = allocate_bitmask(1, size)[0]
    row.fill(0x5A5A5A5A)  # whatever the row held before
    tokens.fill(row)
    assert allowed_ids(row).tolist() == expected
    assert [token for token in range(size) if token in tokens] == expected
