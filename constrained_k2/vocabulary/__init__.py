"""The model's vocabulary: tokenizer files, token bytes, token sets and bitmasks."""

from constrained_k2.vocabulary.vocabulary import Vocabulary

__all__ = ["Vocabulary"]
