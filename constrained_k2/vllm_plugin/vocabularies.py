"""The served model's vocabulary, from the tokenizer that vLLM has loaded or from the checkpoint's files."""

from typing import Any
from weakref import WeakKeyDictionary

from constrained_k2.vocabulary.vocabulary import Vocabulary

_read: WeakKeyDictionary[Any, Vocabulary] = WeakKeyDictionary()


def vocabulary_of(tokenizer: Any) -> Vocabulary:
    """The vocabulary of vLLM's tokenizer, read once for each; raises FormatMismatch if it is not Kimi K2's."""
    if tokenizer not in _read:
        _read[tokenizer] = Vocabulary.from_tokenizer(tokenizer)
    return _read[tokenizer]


def vocabulary_of_model(model_config: Any) -> Vocabulary:
    """The vocabulary of vLLM's ``ModelConfig``, as wide as the logits, also where vLLM loads no tokenizer."""
    return Vocabulary.from_pretrained(
        model_config.tokenizer,
        size=model_config.get_vocab_size(),
        revision=model_config.tokenizer_revision,
        trust=model_config.trust_remote_code,
    )
