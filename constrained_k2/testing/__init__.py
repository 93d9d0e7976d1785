"""Tiny random models with the tokenizer of Kimi K2 or Kimi K3.

Importing this loads neither torch nor transformers.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from constrained_k2.testing.model import DEFAULT_PRIOR, build_model
    from constrained_k2.testing.tokenizer import write_tokenizer

__all__ = ["DEFAULT_PRIOR", "build_model", "write_tokenizer"]


def __getattr__(name: str) -> object:
    """Import an exported name from its module on first use (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{'tokenizer' if name == 'write_tokenizer' else 'model'}"), name)
