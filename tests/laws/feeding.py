"""Feeds texts to matchers of arguments in any tokenization, and holds them to the laws of masks at each token.

bench = Bench(compiler)
bench.feed(compiled.arguments("t"), bench.whole(pieces), random.Random(1))
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from constrained_k2 import Compiler, Vocabulary
from constrained_k2.engines.llguidance.engine import LLGuidanceEngine
from constrained_k2.vocabulary.bitmask import TokenSet, allocate_bitmask, allowed_ids

Piece = int | bytes
"""A part of a text: a special token, or ordinary text."""
STRUCTURE = b'"{}[],:'
_FREE = 20  # tokens of a walk before those that end values are preferred
_SIZES = (1, 1, 2, 2, 3, 4, 5, 6, 8, 12, 16)


class Broken(AssertionError):
    """A law does not hold: the law in a few words, equal for equal faults, and where."""

    def __init__(self, law: str, detail: object = "") -> None:
        super().__init__(f"{law}: {detail}")
        self.law, self.detail = law, str(detail)


class Node:
    """A node of a trie of tokens."""

    __slots__ = ("children", "ids")

    def __init__(self, tokens: Iterable[tuple[bytes, int]], depth: int = 0) -> None:
        groups: dict[int, list[tuple[bytes, int]]] = {}
        self.ids: list[int] = []
        for raw, token in tokens:
            if len(raw) == depth:
                self.ids.append(token)
            else:
                groups.setdefault(raw[depth], []).append((raw, token))
        self.children = {byte: Node(group, depth + 1) for byte, group in groups.items()}


class Bench:
    """A compiler, with what feeding needs of its vocabulary."""

    def __init__(self, compiler: Compiler, compared: Sequence[int] | None = None) -> None:
        """Set up; ``compared`` are tokens that :meth:`compare` tries, by default those of structural_tokens()."""
        self.compiler = compiler
        self.vocabulary = vocabulary = compiler.vocabulary
        self.stop = vocabulary.format.engine_stop
        self.is_xtml = vocabulary.format.argument_encoding == "xtml"
        engine = compiler.engine("llguidance")
        assert isinstance(engine, LLGuidanceEngine)
        self.engine = engine
        sorted_bytes, ids = vocabulary.sorted_tokens
        self._ids = dict(zip(sorted_bytes, ids, strict=True))
        self.byte_ids = [self._ids.get(bytes((byte,)), -1) for byte in range(256)]
        compared = structural_tokens(vocabulary) if compared is None else compared
        self.compared = list(compared)
        self.trie = Node([(vocabulary.ordinary_bytes(token), token) for token in compared])
        self.row = allocate_bitmask(1, vocabulary.size)[0]
        self._other, self._ends = self.row.copy(), self.row.copy()
        ends = [self._ids[raw] for raw in (b'"', b"}", b"]", b'":') if raw in self._ids]
        markers = vocabulary.format.argument_markers if self.is_xtml else ()
        TokenSet([*ends, *markers, self.stop], vocabulary.size).fill(self._ends)

    # Splits of a text into tokens

    def canonical(self, pieces: Iterable[Piece]) -> list[int]:
        """The tokens that the tokenizer makes of a text."""
        return _tokens(pieces, lambda text: self.vocabulary.encode(text.decode()))

    def bytewise(self, pieces: Iterable[Piece]) -> list[int]:
        """One token for each byte."""
        return _tokens(pieces, lambda text: [self.byte_ids[byte] for byte in text])

    def split(self, pieces: Iterable[Piece], draw: random.Random) -> list[int]:
        """Any tokens that make up the text."""

        def cut(text: bytes) -> Iterator[int]:
            while text:
                size = min(len(text), draw.choice(_SIZES))
                while size > 1 and text[:size] not in self._ids:
                    size -= 1
                yield self._ids[text[:size]]
                text = text[size:]

        return _tokens(pieces, cut)

    def pieces(self, ids: Iterable[int]) -> list[Piece]:
        """The text of tokens."""
        found: list[Piece] = []
        for token in ids:
            if not self.vocabulary.is_ordinary(token):
                found.append(token)
            elif found and isinstance(found[-1], bytes):
                found[-1] += self.vocabulary.ordinary_bytes(token)
            else:
                found.append(self.vocabulary.ordinary_bytes(token))
        return found

    def shown(self, ids: Iterable[int]) -> str:
        """The tokens, for a person."""
        vocabulary = self.vocabulary
        parts = (
            vocabulary.ordinary_bytes(one).decode(errors="backslashreplace")
            if vocabulary.is_ordinary(one)
            else vocabulary.special_text(one) or f"<{one}>"
            for one in ids
        )
        return repr("·".join(parts))

    def size(self, token: int) -> int:
        """The bytes of a token; 1 for a special one."""
        return len(self.vocabulary.ordinary_bytes(token)) or 1

    # Laws

    def mask(self, matcher: Any, ids: Sequence[int]) -> npt.NDArray[np.int32]:
        """The mask, int32 ``[words]``, valid until the next call: never empty, with the stop at a complete text alone."""
        matcher.fill(self.row)
        if not self.row.any():
            raise Broken("a mask is empty", self.shown(ids))
        if has(self.row, self.stop) != matcher.is_complete():
            law = "the stop is in the mask of an incomplete text, or not in that of a complete one"
            raise Broken(law, self.shown(ids))
        return self.row

    def feed(
        self, matcher: Any, ids: Sequence[int], draw: random.Random, probes: float = 0.0, *, is_direct: bool = False
    ) -> int:
        """Feed tokens up to the first that is refused; the number of bytes that were taken.

        ``probes`` is the share of the places where :meth:`probe` is called; :meth:`direct` is at all, if ``is_direct``.
        """
        taken = 0
        for number, token in enumerate(ids):
            before = ids[:number]
            row = self.mask(matcher, before)
            if is_direct:
                self.direct(matcher, before)
            if not self._agree(matcher, before, token, has(row, token)):
                return taken
            taken += self.size(token)
            if probes and draw.random() < probes:
                self.probe(matcher, ids[: number + 1], draw)
        self.mask(matcher, ids)
        return taken

    def walk(self, matcher: Any, draw: random.Random, limit: int, probes: float = 0.0) -> list[int]:
        """Choose tokens at random up to the stop, or the limit; the choice soon prefers what ends values."""
        ids: list[int] = []
        while len(ids) < limit:
            row = self.mask(matcher, ids)
            allowed = allowed_ids(row)
            if len(ids) > _FREE or draw.random() < 0.4:
                some = allowed_ids(row & self._ends)
                allowed = some if len(some) else allowed
            token = int(allowed[draw.randrange(len(allowed))])
            if token == self.stop:
                break
            if not matcher.accept(token):
                raise Broken("a token is in the mask and is refused", f"{self.shown([token])} after {self.shown(ids)}")
            ids.append(token)
            if draw.random() < probes:
                self.probe(matcher, ids, draw)
        return ids

    def _agree(self, matcher: Any, before: Sequence[int], token: int, is_shown: bool) -> bool:
        """Accept a token exactly if it is in the mask, or in another split of a forced text."""
        is_taken: bool = matcher.accept(token)
        if is_taken == is_shown or (is_taken and self._is_forced(matcher, before, token)):
            return is_taken
        law = "a token is in the mask and is refused" if is_shown else "a token is accepted and not in the mask"
        raise Broken(law, f"{self.shown([token])} after {self.shown(before)}")

    def _is_forced(self, matcher: Any, before: Sequence[int], token: int) -> bool:
        """True if a token begins some split of a text that LLGuidance forces; masks allow one split."""
        alone = matcher.grammar.copy()
        alone.consume_tokens(list(before))
        text, raw = bytes(alone.compute_ff_bytes()), self.vocabulary.ordinary_bytes(token)
        return bool(text) and (raw.startswith(text) or text.startswith(raw))

    def probe(self, matcher: Any, before: Sequence[int], draw: random.Random) -> None:
        """Masks, tokens of several parts, drafts, forks and rollbacks at one place, which stays as it is."""
        row = self.mask(matcher, before).copy()
        allowed = allowed_ids(row)
        some = {int(draw.choice(allowed)) for _ in range(4)} | {draw.randrange(self.vocabulary.size) for _ in range(2)}
        for token in sorted(some - {self.stop}):
            if self.vocabulary.is_ordinary(token) or token in allowed:
                matcher.rollback(int(self._agree(matcher, before, token, has(row, token))))
        self._unchanged(matcher, row, before)
        self.direct(matcher, before)
        self.compare(matcher, before, row)
        fork, other = matcher.fork(), self._other
        drafts = fork.forced_tokens()
        if drafts and not all(map(fork.accept, drafts)):
            raise Broken("forced tokens are refused", f"{self.shown(drafts)} after {self.shown(before)}")
        back = draw.randint(0, min(8, len(before)))
        fork.rollback(len(drafts) + back)
        for token in before[len(before) - back :]:
            fork.fill(other)
            if not fork.accept(token):
                raise Broken("a token is refused after a rollback", f"{self.shown([token])} in {self.shown(before)}")
        fork.fill(other)
        if not np.array_equal(other, row):
            raise Broken("a mask is another one after a rollback", self.differing(row, other, before))
        self._unchanged(matcher, row, before)

    def _unchanged(self, matcher: Any, row: npt.NDArray[np.int32], before: Sequence[int]) -> None:
        matcher.fill(self._other)
        if not np.array_equal(self._other, row):
            raise Broken("a mask is another one the second time", self.differing(row, self._other, before))

    def differing(self, row: npt.NDArray[np.int32], other: npt.NDArray[np.int32], before: Sequence[int]) -> str:
        """Which tokens are in one of two masks alone."""
        more, less = (
            [self.shown([int(one)]) for one in allowed_ids(rows)[:8]] for rows in (row & ~other, other & ~row)
        )
        return f"only at first {more}, only then {less} after {self.shown(before)}"

    def direct(self, matcher: Any, before: Sequence[int]) -> bool:
        """A mask that is computed without LLGuidance is that of LLGuidance; True if there is one."""
        dfa = matcher.grammar.dfa
        if dfa is None:
            return False
        direct = dfa.direct_mask(matcher._state, before[-1] if before else -1)
        if direct is None:
            return False
        alone = matcher.grammar.copy()
        for token in before:  # masks between the tokens are not needed without rollbacks
            if not alone.consume_token(token):
                raise Broken("LLGuidance refuses what is accepted", self.shown(before))
        engine = np.frombuffer(alone.compute_bitmask(), dtype=np.int32)[: len(direct)]
        if not np.array_equal(direct, engine):
            law = "a direct mask is not LLGuidance's: " + ("more" if (direct & ~engine).any() else "less")
            raise Broken(law, self.differing(direct, engine, before))
        return True

    def compare(self, matcher: Any, before: Sequence[int], row: npt.NDArray[np.int32]) -> None:
        """Tokens of several bytes are accepted exactly if their bytes are."""
        bytewise = set(self._taken(matcher, self.trie))
        for token in self.compared:
            if (is_shown := has(row, token)) or token in bytewise:
                is_taken = self._agree(matcher, before, token, is_shown)
                matcher.rollback(int(is_taken))
                if is_taken != (token in bytewise):
                    how = "accepted, and its bytes are not" if is_taken else "refused, and its bytes are accepted"
                    raise Broken(f"a token is {how}", f"{self.shown([token])} after {self.shown(before)}")

    def _taken(self, matcher: Any, node: Node) -> Iterator[int]:
        yield from node.ids
        for byte, child in node.children.items():
            token = self.byte_ids[byte]
            if token >= 0 and matcher.accept(token):
                yield from self._taken(matcher, child)
                matcher.rollback(1)


def _tokens(pieces: Iterable[Piece], split: Callable[[bytes], Iterable[int]]) -> list[int]:
    """Special tokens as they are, and texts as they are split."""
    return [token for piece in pieces for token in ([piece] if isinstance(piece, int) else split(piece))]


def has(row: npt.NDArray[np.int32], token: int) -> bool:
    """True if a token is in a mask, int32 ``[words]``."""
    return bool(int(row[token >> 5]) >> (token & 31) & 1)


def structural_tokens(vocabulary: Vocabulary) -> list[int]:
    """The ordinary tokens with two or more of JSON's structural characters."""
    tokens, ids = vocabulary.sorted_tokens
    return [token for raw, token in zip(tokens, ids, strict=True) if sum(raw.count(one) for one in STRUCTURE) > 1]
