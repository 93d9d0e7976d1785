"""Encodes the text of a guess as the model would go on."""

from constrained_k2.vocabulary.vocabulary import Vocabulary

_MAX_BEGUN = 64  # characters before a text that are encoded with it


def encoded_after(begun: str, text: str, vocabulary: Vocabulary) -> list[int]:
    """The tokens of a text that goes on from ``begun`` in its last word, if a token ends there; else the text's own."""
    if not text:
        return []
    word = begun[max(begun.rfind(" "), 0) :]
    if word and len(word) <= _MAX_BEGUN:
        ids, left = vocabulary.encode(word + text), len(word.encode())
        for number, token_id in enumerate(ids):
            if left <= 0:
                if left == 0:
                    return ids[number:]
                break
            left -= len(vocabulary.ordinary_bytes(token_id))
    return vocabulary.encode(text)
