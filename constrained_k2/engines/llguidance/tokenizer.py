"""Builds LLGuidance's tokenizer for a vocabulary, with slices (token sets allowed as a whole)."""

import llguidance

from constrained_k2.formats.kimi_k3 import SEPARATOR
from constrained_k2.vocabulary.tokenizer_files import SPLIT_PATTERN, TiktokenEncoder
from constrained_k2.vocabulary.vocabulary import Vocabulary

# Slices: groups of tokens that LLGuidance allows at once if the terminal accepts the whole group: blanks, names, and
# the characters of JSON strings. Unlike LLGuidance's own, these lack what "." of ECMA-262 does not match.
_JSON_CHARACTER = r'[^"\\\x00-\x1F\x7F\u{2028}\u{2029}]'
_JSON_SLICES = [r"[\x20\x0A\x0D\x09]+", "[A-Za-z0-9_]{1,10}"]
_JSON_SLICES += [_JSON_CHARACTER + count for count in ("{1,10}", "{1,30}", "+")]
# Slices for strings without escapes, besides LLGuidance's own: they halve the time of a mask for a limited length.
_RAW_SLICES = ["(?s:.{1,10})", "(?s:.{1,30})"]
# Slices for the keys of XML attributes, which contain no plain ampersand: a mask then takes a twentieth of the time.
# They are subsets of the slices for JSON strings, and come first: a slice is used only if all its tokens are allowed.
_ATTRIBUTE_SLICES = [rf'[^"&\\\x00-\x1F\x7F]{count}' for count in ("{1,10}", "{1,30}", "+")]


def build_tokenizer(vocabulary: Vocabulary, stop_id: int) -> llguidance.LLTokenizer:
    """Return LLGuidance's tokenizer for a vocabulary. Special tokens are never text; ``stop_id`` is the stop token."""
    encoder = vocabulary.encoder
    slices = _JSON_SLICES
    if SEPARATOR in vocabulary.special_tokens:
        slices = [*_ATTRIBUTE_SLICES, *llguidance.LLTokenizer.json_slices(), *_RAW_SLICES]
    if not isinstance(encoder, TiktokenEncoder):
        wrapper = llguidance.TokenizerWrapper(WrappedVocabulary(vocabulary, stop_id))
        return llguidance.LLTokenizer(wrapper, n_vocab=vocabulary.size, slices=slices)
    native: llguidance.LLTokenizer = llguidance.LLTokenizer.from_tiktoken(  # type: ignore[attr-defined]
        encoder=encoder.ranks,
        special_tokens=vocabulary.special_tokens,
        pattern=SPLIT_PATTERN,
        eos_token=stop_id,
        n_vocab=vocabulary.size,
        slices=slices,
    )
    return native


class WrappedVocabulary:
    """The interface that :class:`llguidance.TokenizerWrapper` reads."""

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
        return self._encode(text)
