"""Transcripts as token ids, and engines with whole-turn grammars as oracles for the split matcher."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import llguidance
import numpy as np
import numpy.typing as npt
import xgrammar

from constrained_k2 import ToolCallMatcher, ToolCallSpec, Vocabulary
from constrained_k2.engines.llguidance.tokenizer import WrappedVocabulary
from constrained_k2.formats import kimi_k3
from constrained_k2.formats.kimi_k2 import MARKER_TEXTS
from constrained_k2.formats.kimi_k3 import KIMI_K3
from constrained_k2.grammar.lark.terminals import NO_FORCING
from constrained_k2.vocabulary.tokenizer_files import SPLIT_PATTERN, TiktokenEncoder
from scripts.write_grammars import K3, ROOT, cases

CASES = cases(ROOT)
IDS = [case.name for case in CASES]
K3_CASES = cases(K3)
ALL = [*CASES, *K3_CASES]
ALL_IDS = [str(case.relative_to(ROOT)) for case in ALL]
BYTES = Vocabulary.of_bytes()
K3_BYTES = Vocabulary.of_bytes(KIMI_K3)


def spec_of(case: Path) -> ToolCallSpec:
    return ToolCallSpec.from_json((case / "request.json").read_bytes())


def in_reasoning(case: Path) -> bool:
    """Return True if the prompt opens the reasoning: Kimi K3's prompts do where the request enables thinking."""
    return case.parent == K3 and spec_of(case).thinking


def transcripts(case: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (case / "transcripts.jsonl").read_text(encoding="utf-8").splitlines()]


def bytes_of(case: Path) -> Vocabulary:
    """Return the vocabulary of the 256 bytes with the markers of a case's format."""
    return K3_BYTES if case.parent == K3 else BYTES


_TEXTS = dict.fromkeys((*MARKER_TEXTS.values(), *kimi_k3.MARKER_TEXTS.values()))
_MARKER = re.compile(rf"(\\?(?:{'|'.join(map(re.escape, _TEXTS))}))")


def transcript_ids(text: str, vocabulary: Vocabulary) -> list[int]:
    r"""Return the tokens of a transcript: markers as one token; after a backslash, in ordinary tokens."""
    ids: list[int] = []
    ordinary = ""
    for part in _MARKER.split(text):
        if part in vocabulary.special_tokens:
            ids += [*vocabulary.encode(ordinary), vocabulary.special_tokens[part]]
            ordinary = ""
        else:
            ordinary += part[1:] if _MARKER.fullmatch(part) else part
    return ids + vocabulary.encode(ordinary)


def verdict(accept: Any, ids: list[int]) -> int | None:
    """Return the index of the first refused token; None if all are accepted."""
    return next((number for number, token in enumerate(ids) if not accept(token)), None)


def refused_at(matcher: ToolCallMatcher, ids: list[int]) -> int | None:
    """Return the index of the first token that a matcher of a turn refuses; None if it accepts all."""
    return verdict(lambda token: matcher.accept_tokens([token]), ids)


class LarkOracle:
    """A whole-turn Lark grammar, run by LLGuidance with ``[EOS]`` as its stop token.

    ``forcing``: if text is forced, only its canonical token is allowed, as LLGuidance does by default.
    """

    def __init__(self, text: str, vocabulary: Vocabulary, *, forcing: bool = False, limits: Any = None) -> None:
        options = "" if forcing else f"{NO_FORCING}\n"
        text = text.removeprefix(NO_FORCING)  # of Kimi K3's grammars
        self.size = vocabulary.size
        self.matcher = llguidance.LLMatcher(_tokenizer(vocabulary), options + text, log_level=0, limits=limits)
        assert not self.matcher.is_error(), self.matcher.get_error()

    def mask(self) -> npt.NDArray[np.bool_]:
        bits = np.frombuffer(self.matcher.compute_bitmask(), np.uint8)
        assert not self.matcher.is_error(), self.matcher.get_error()
        return np.unpackbits(bits, bitorder="little")[: self.size].astype(bool)

    def accept(self, token_id: int) -> bool:
        taken = self.matcher.try_consume_tokens([token_id])
        assert not self.matcher.is_error(), self.matcher.get_error()
        return bool(taken)

    def accept_all(self, ids: list[int]) -> bool:
        """Accept all tokens or none."""
        taken = self.matcher.try_consume_tokens(ids)
        assert not self.matcher.is_error(), self.matcher.get_error()
        if taken < len(ids):
            assert self.matcher.rollback(taken)
        return taken == len(ids)


class TagOracle:
    """A whole-turn structural tag or EBNF, run by xgrammar; special tokens are never text."""

    def __init__(self, text: str, vocabulary: Vocabulary, *, ebnf: bool = False) -> None:
        stops = list(vocabulary.format.stop_ids)
        tokens: list[Any] = [
            vocabulary.ordinary_bytes(token_id) or b"\xff" + vocabulary.token_bytes(token_id)
            for token_id in range(vocabulary.size)
        ]
        if ebnf:  # markers as text
            for marker in set(MARKER_TEXTS.values()) & set(vocabulary.special_tokens):
                tokens[vocabulary.special_tokens[marker]] = marker.encode()
        info = xgrammar.TokenizerInfo(tokens, xgrammar.VocabType.RAW, vocab_size=vocabulary.size, stop_token_ids=stops)
        compiler = xgrammar.GrammarCompiler(info, max_threads=1)
        compiled = compiler.compile_grammar(text) if ebnf else compiler.compile_structural_tag(text)
        self.matcher = xgrammar.GrammarMatcher(compiled)

    def accept(self, token_id: int) -> bool:
        return not self.matcher.is_terminated() and bool(self.matcher.accept_token(token_id))


@cache
def _tokenizer(vocabulary: Vocabulary) -> llguidance.LLTokenizer:
    """Return LLGuidance's tokenizer of a vocabulary, with special tokens by their own text."""
    encoder = vocabulary.encoder
    if isinstance(encoder, TiktokenEncoder):
        return llguidance.LLTokenizer.from_tiktoken(  # type: ignore[attr-defined]  # its stub lacks it
            encoder=encoder.ranks,
            special_tokens=vocabulary.special_tokens,
            pattern=SPLIT_PATTERN,
            eos_token=vocabulary.format.text_end,
            n_vocab=vocabulary.size,
        )
    return llguidance.LLTokenizer(
        llguidance.TokenizerWrapper(WrappedVocabulary(vocabulary, vocabulary.format.text_end)), n_vocab=vocabulary.size
    )
