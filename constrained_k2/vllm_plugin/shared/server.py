"""Keeps the settings of the server that a process belongs to, and reads its vocabulary."""

from functools import lru_cache
from typing import Any

from constrained_k2.formats.base import WireFormat
from constrained_k2.formats.kimi_k2 import KIMI_K2
from constrained_k2.vllm_plugin.shared.settings import Route, Settings, settings_in
from constrained_k2.vocabulary.vocabulary import Vocabulary

_read = lru_cache(maxsize=8)(Vocabulary.from_tokenizer)


class Server:
    """The server of this process; set where vLLM sets up its admission of requests."""

    constrains: bool = True
    """True if its engine constrains, by either route."""
    model_name: str = ""
    """vLLM's ``model_name`` label."""
    settings: Settings = Settings()
    wire_format: WireFormat = KIMI_K2
    """The format of the vocabulary that was asked for last; every process asks before its first request."""


def remember_server(vllm_config: Any, route: Route | None) -> None:
    """Set :class:`Server`, except for the format."""
    Server.constrains = route is not None
    Server.model_name = vllm_config.model_config.served_model_name
    Server.settings = settings_in(vllm_config)


def vocabulary_of(tokenizer: Any) -> Vocabulary:
    """The vocabulary of vLLM's tokenizer, read once for each; raises FormatMismatch if it is not a known one."""
    vocabulary = _read(tokenizer)
    Server.wire_format = vocabulary.format
    return vocabulary


def vocabulary_of_model(model_config: Any) -> Vocabulary:
    """The vocabulary of vLLM's ``ModelConfig``, as wide as the logits, also where vLLM loads no tokenizer."""
    vocabulary = Vocabulary.from_pretrained(
        model_config.tokenizer,
        size=model_config.get_vocab_size(),
        revision=model_config.tokenizer_revision,
        trust=model_config.trust_remote_code,
    )
    Server.wire_format = vocabulary.format
    return vocabulary
