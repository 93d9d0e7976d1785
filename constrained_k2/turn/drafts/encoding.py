"""Tokenizes a draft as the continuation of the word before it; alone, if a token would span both."""

from constrained_k2.turn.cursors.arguments_cursor import SPECIAL
from constrained_k2.vocabulary.vocabulary import Vocabulary

_MAX_WORD = 64  # max characters of the unfinished word that are encoded with the draft


def encoded_after(written: str, text: str, vocabulary: Vocabulary) -> list[int]:
    """Encode a text together with the unfinished word before it if a token boundary falls between them; else alone."""
    if not text:
        return []
    tail = written[-_MAX_WORD:]
    word = tail[max(0, tail.rfind(" "), tail.rfind(SPECIAL) + 1) :]
    ids, left = vocabulary.encode(word + text), len(word.encode())
    for number, token_id in enumerate(ids):
        if left <= 0:
            return ids[number:] if left == 0 else vocabulary.encode(text)
        left -= len(vocabulary.ordinary_bytes(token_id))
    return vocabulary.encode(text)
