"""A vocabulary as LLGuidance takes it."""

import llguidance

from constrained_k2.tokenizer_files import SPLIT_PATTERN, TiktokenEncoder
from constrained_k2.vocabulary import Vocabulary


def plain_tokenizer(vocabulary: Vocabulary, stop_id: int) -> llguidance.LLTokenizer:
    """The vocabulary as LLGuidance takes it; special tokens are no text to it, and one of them is the stop."""
    encoder = vocabulary.encoder
    slices = llguidance.LLTokenizer.json_slices()
    if isinstance(encoder, TiktokenEncoder):
        native: llguidance.LLTokenizer = llguidance.LLTokenizer.from_tiktoken(  # type: ignore[attr-defined]
            encoder=encoder.ranks,
            special_tokens=vocabulary.special_tokens,
            pattern=SPLIT_PATTERN,
            eos_token=stop_id,
            n_vocab=vocabulary.size,
            slices=slices,
        )
        return native
    return llguidance.LLTokenizer(
        llguidance.TokenizerWrapper(WrappedVocabulary(vocabulary, stop_id)), n_vocab=vocabulary.size, slices=slices
    )


class WrappedVocabulary:
    """What :class:`llguidance.TokenizerWrapper` reads of a tokenizer."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, stop_id: int) -> None:
        self.eos_token_id = stop_id
        self.special_token_ids = list(vocabulary.unordinary_ids)
        self.tokens = [
            vocabulary.ordinary_bytes(token_id)
            or b"\xff" + (vocabulary.special_text(token_id) or f"<hole_{token_id}>").encode()
            for token_id in range(vocabulary.size)
        ]
        self._encode = vocabulary.encode

    def __call__(self, text: str) -> list[int]:
        """Its tokens, special tokens' text as text."""
        return self._encode(text)
