"""The vocabulary behind vLLM's tokenizer."""

from typing import Any
from weakref import WeakKeyDictionary

from constrained_k2.vocabulary import Vocabulary

_vocabularies: WeakKeyDictionary[Any, Vocabulary] = WeakKeyDictionary()


def vocabulary_of(tokenizer: Any) -> Vocabulary:
    """The vocabulary behind vLLM's tokenizer, read once for each.

    Raises:
        FormatMismatch: It is not one of Kimi K2's.
    """
    if tokenizer not in _vocabularies:
        _vocabularies[tokenizer] = Vocabulary.from_tokenizer(tokenizer)
    return _vocabularies[tokenizer]
