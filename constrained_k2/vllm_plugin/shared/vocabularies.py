"""The served model's vocabulary, from vLLM's tokenizer or from the checkpoint's files."""

from typing import Any
from weakref import WeakKeyDictionary

from constrained_k2.formats.base import WireFormat
from constrained_k2.formats.kimi_k2 import KIMI_K2
from constrained_k2.vocabulary.vocabulary import Vocabulary

_read: WeakKeyDictionary[Any, Vocabulary] = WeakKeyDictionary()


class Served:
    """Properties of the served model; a process serves one."""

    wire_format: WireFormat = KIMI_K2
    """The format of the vocabulary that was asked for last; every process asks before its first request."""


def vocabulary_of(tokenizer: Any) -> Vocabulary:
    """The vocabulary of vLLM's tokenizer, read once for each; raises FormatMismatch if it is not a known one."""
    if tokenizer not in _read:
        _read[tokenizer] = Vocabulary.from_tokenizer(tokenizer)
    return _served(_read[tokenizer])


def vocabulary_of_model(model_config: Any) -> Vocabulary:
    """The vocabulary of vLLM's ``ModelConfig``, as wide as the logits, also where vLLM loads no tokenizer."""
    read = Vocabulary.from_pretrained(
        model_config.tokenizer,
        size=model_config.get_vocab_size(),
        revision=model_config.tokenizer_revision,
        trust=model_config.trust_remote_code,
    )
    return _served(read)


def _served(vocabulary: Vocabulary) -> Vocabulary:
    Served.wire_format = vocabulary.format
    return vocabulary
