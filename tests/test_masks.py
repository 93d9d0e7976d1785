"""Token sets, headers, and masks on logits, each against the slow and obvious way."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from constrained_k2 import Vocabulary, apply_token_bitmask
from constrained_k2.bitmask import TokenSet, allocate_bitmask, allowed_ids
from constrained_k2.format import MARKER_TEXTS
from constrained_k2.header import HeaderStems, NameEnds
from constrained_k2.kernels import mask_rows, numpy_bitmask, restore_emptied_rows, torch_bitmask

NEVER = float("-inf")
BYTES = Vocabulary.of_bytes()


@given(st.integers(1, 200), st.sets(st.integers(0, 199)), st.booleans())
def test_token_sets(size: int, ids: set[int], complement: bool) -> None:
    ids = {token for token in ids if token < size}
    tokens = TokenSet(ids, size, complement=complement)
    expected = sorted(set(range(size)) - ids if complement else ids)
    row = allocate_bitmask(1, size)[0]
    row.fill(0x5A5A5A5A)  # whatever stood there before
    tokens.fill(row)
    assert allowed_ids(row).tolist() == expected
    assert [token for token in range(size) if token in tokens] == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [64, 70, 97])
def test_apply_token_bitmask(dtype: torch.dtype, size: int) -> None:
    chance = np.random.default_rng(size)
    logits = torch.randn(7, 2 * size, dtype=torch.float32).to(dtype)[:, ::2]  # strided
    before = logits.clone()
    bitmask = torch.from_numpy(chance.integers(-(2**31), 2**31, (3, (size + 31) // 32), dtype=np.int32))
    apply_token_bitmask(logits, bitmask, rows=[5, 0, 3])
    expected = before.clone()
    for source, target in enumerate([5, 0, 3]):
        allowed = set(allowed_ids(bitmask[source].numpy()).tolist())
        expected[target, [token for token in range(size) if token not in allowed]] = NEVER
    assert torch.equal(logits, expected)


def test_columns_without_a_bit_are_forbidden() -> None:
    logits = torch.zeros(1, 80)
    apply_token_bitmask(logits, torch.full((1, 2), -1, dtype=torch.int32))
    assert (logits[0, :64] == 0).all()
    assert (logits[0, 64:] == NEVER).all()


@pytest.mark.parametrize("rows", [[0], [0, 5], [-1, 0]])
def test_rows_that_do_not_fit(rows: list[int]) -> None:
    with pytest.raises(ValueError, match="rows"):
        apply_token_bitmask(torch.zeros(2, 32), torch.zeros(2, 1, dtype=torch.int32), rows=rows)


def test_rows_that_others_have_emptied() -> None:
    masks = torch.tensor([[0b0011_1000], [0b0011_1000], [0b1000_0000]], dtype=torch.int32)
    logits = torch.arange(40, dtype=torch.float32).repeat(5, 1)
    logits[1:, 3:6] = NEVER  # min_tokens, say, has forbidden what the mask allows
    plan = torch.tensor([(0, 0, 1), (1, 1, 1), (2, 0, 0), (4, 2, 1)], dtype=torch.int32)
    mask_rows(logits, masks, plan)
    restore_emptied_rows(logits, masks, plan)
    assert logits[0, 3:6].tolist() == [3, 4, 5]
    assert logits[1, 3:6].tolist() == [0, 0, 0]
    assert (logits[2] == NEVER).all()  # nobody asked for it
    assert logits[4, 7] == 7
    assert torch.isfinite(logits).sum(dim=1).tolist() == [3, 3, 0, 37, 1]


@pytest.mark.parametrize("at_once", [1, 200, 1 << 16])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize(("size", "width"), [(64, 64), (97, 97), (97, 80), (64, 130)])
def test_numpy_masks_as_torch_does(
    dtype: torch.dtype, size: int, width: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numpy_bitmask, "_MOST_AT_ONCE", at_once)
    torch.manual_seed(size)
    logits = torch.randn(12, 2 * width).to(dtype)[:, ::2]  # strided
    logits[3, :] = NEVER  # emptied before
    logits[:3, 5] = float("inf")
    masks = torch.randint(-(2**31), 2**31, (4, 2 * ((size + 31) // 32))).to(torch.int32)[:, ::2]
    order = (5, 1, 0), (0, 3, 1), (1, 2, 0), (2, 2, 0), (3, 0, 1), (4, 1, 0), (9, 0, 0), (11, 3, 0), (10, 3, 0)
    plan = torch.tensor(order, dtype=torch.int32)
    expected = logits.clone()
    assert numpy_bitmask.takes(logits)
    for kernels, made in ((torch_bitmask, expected), (numpy_bitmask, logits)):
        kernels.mask_rows(made, masks, plan)
        kernels.restore_emptied_rows(made, masks, plan)
    assert torch.equal(logits, expected)
    assert torch.isfinite(expected[3]).any()


NAMES = ("get_weather", "get", "get_weather:0", "查询", "a b", "🌦️-tool", "x:y", "x")


def test_headers_against_all_tokens(small_vocabulary: Vocabulary) -> None:
    headers = HeaderStems(NAMES, small_vocabulary).due(10)
    whole = {f"functions.{name}:10".encode(): name for name in NAMES}
    prefixes = {header[:cut] for header in whole for cut in range(len(header) + 1)}
    for prefix in sorted(prefixes):
        expected = {
            token
            for token in range(small_vocabulary.size)
            if (raw := small_vocabulary.ordinary_bytes(token)) and prefix + raw in prefixes
        }
        if prefix in whole:
            expected.add(small_vocabulary.format.argument_begin)
        assert set(headers.allowed(prefix).listed) == expected
        assert headers.name_of(prefix) == whole.get(prefix)
        going_on = [name for header, name in whole.items() if header.startswith(prefix)]
        count, name = headers.candidates(prefix)
        assert count == len(going_on)
        assert name in going_on
    assert headers.candidates(b"functions.set") == (0, "")


def test_headers_with_the_highest_bytes() -> None:
    tokens = {byte: bytes((byte,)) for byte in range(256)} | {256: "\U0010ffff".encode(), 257: b"\xff\xff"}
    special = {text: 258 + number for number, text in enumerate(MARKER_TEXTS.values())}
    vocabulary = Vocabulary(tokens, special, 300, BYTES.encoder)
    headers = HeaderStems(("\U0010ffff",), vocabulary).due(0)
    assert set(headers.allowed(b"functions.").listed) == {0xF4, 256}


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
    ends = NameEnds()
    for names in (("x",), ("x", "x:1", "f", "f:1", "a", "fx"), ("ax", "f:1", "x:1", "1", "y:1"), ("x", "fx:1")):
        check_every_prefix(names, vocabulary, tokens, ends)


def check_every_prefix(
    names: tuple[str, ...], vocabulary: Vocabulary, tokens: dict[int, bytes], ends: NameEnds
) -> None:
    stems = HeaderStems(names, vocabulary, ends)
    for index in (0, 1, 12, 2, 123, 12):  # one set of stems for all of them
        headers = stems.due(index)
        whole = {f"functions.{name}:{index}".encode(): name for name in names}
        prefixes = {header[:cut] for header in whole for cut in range(len(header) + 1)}
        for prefix in sorted(prefixes):
            expected = {token for token, raw in tokens.items() if prefix + raw in prefixes}
            if prefix in whole:
                expected.add(vocabulary.format.argument_begin)
            assert set(headers.allowed(prefix).listed) == expected, (index, prefix)
            going_on = [header for header in whole if header.startswith(prefix)]
            assert headers.candidates(prefix)[0] == len(going_on)
            ahead, is_whole = headers.forced(prefix)
            assert all(header.startswith(prefix + ahead) for header in going_on)
            assert is_whole == (len(going_on) == 1)
