"""Token sets against Python's sets."""

from hypothesis import given
from hypothesis import strategies as st

from constrained_k2.vocabulary.bitmask import TokenSet, allocate_bitmask, allowed_ids


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
