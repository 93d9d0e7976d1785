"""Defines a fault of a rendered prompt: its kind, its location and the remedy."""

from dataclasses import dataclass
from typing import Literal

FaultKind = Literal[
    "generation prompt", "content list", "call id", "result id", "special token", "blanks", "turns", "tags"
]

_NEUTRALIZE = "Neutralize special tokens in messages and tools, as this package's repairs do"
_REMEDIES: dict[FaultKind, str] = {
    "generation prompt": "Render with add_generation_prompt; the tokenizer must pass it to its template",
    "content list": "Send text as a string, or serve with --chat-template-content-format string",
    "call id": "Send the calls of the history with the ids functions.NAME:INDEX, numbered over the dialog",
    "result id": "Send each result with the id of its call",
    "special token": _NEUTRALIZE,
    "blanks": "Use the checkpoint's current chat template: this one adds its own indentation",
    "turns": _NEUTRALIZE,
    "tags": "Encode the texts of a request without special tokens, as Kimi K3's own tokenizer does",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a prompt."""

    kind: FaultKind
    location: str  # the turn's number, from 0 with the declaration of the tools, and its name
    problem: str

    @property
    def remedy(self) -> str:
        """The remedy, as an instruction."""
        return _REMEDIES[self.kind]
