"""Random models under the masks of Kimi K3's arguments, on the real vocabulary and the schemas of public tools."""

import json
import random

import numpy as np
import numpy.typing as npt
import pytest

from constrained_k2 import Vocabulary
from constrained_k2.engines.llguidance.engine import LLGuidanceEngine
from constrained_k2.engines.protocol import ArgumentGrammar
from constrained_k2.vocabulary.bitmask import TokenSet, allocate_bitmask, allowed_ids
from tests.kit.compilers import validator_of
from tests.kit.data import mcp_servers
from tests.kit.xtml import CLOSE, SPECIAL, decode, encode, pieces, with_xtml_markers


class Walker:
    """A model that ends values three times in ten where it may, and else takes any allowed token."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.stop = vocabulary.format.call_end
        self.markers = {vocabulary.special_tokens[text] for text in SPECIAL}
        ends = [token for raw in (b'"', b'" ', b"}", b"]", b'":', b'"}') if (token := vocabulary.find(raw)) is not None]
        self._ends = self._row([*ends, *self.markers, self.stop])
        self._endings = self._row([vocabulary.special_tokens[CLOSE], self.stop])

    def _row(self, ids: list[int]) -> npt.NDArray[np.int32]:
        row = allocate_bitmask(1, self.vocabulary.size)[0]
        TokenSet(ids, self.vocabulary.size).fill(row)
        return row

    def walk(self, grammar: ArgumentGrammar, seed: int, limit: int = 20_000) -> list[int]:
        """Return the tokens of random arguments."""
        chance = random.Random(seed)
        row = allocate_bitmask(1, self.vocabulary.size)[0]
        matcher = grammar.matcher("schema")
        ids: list[int] = []
        while len(ids) < limit:
            matcher.fill(row)
            assert row.any(), f"nothing is allowed after {self.vocabulary.decode(ids)!r}"
            assert matcher.is_complete() == bool(row[self.stop // 32] >> (self.stop % 32) & 1)
            choices = row
            if chance.random() < 0.3:
                choices = next((some for tier in (self._endings, self._ends) if (some := row & tier).any()), row)
            allowed = allowed_ids(choices)
            token = int(allowed[chance.randrange(len(allowed))])
            if token == self.stop:
                return ids
            assert self.vocabulary.is_ordinary(token) or token in self.markers, token
            assert matcher.accept(token), f"{token} is in the mask but is refused"
            ids.append(token)
        pytest.fail(f"no end after {limit} tokens: …{self.vocabulary.decode(ids[-100:])!r}")

    def accepts(self, grammar: ArgumentGrammar, written: list[str]) -> bool:
        """Return True if these pieces are complete arguments and each of their tokens is in its mask."""
        row = allocate_bitmask(1, self.vocabulary.size)[0]
        matcher = grammar.matcher("schema")
        for token in encode(self.vocabulary, written):
            matcher.fill(row)
            if not row[token // 32] >> (token % 32) & 1 or not matcher.accept(token):
                return False
        return matcher.is_complete()


@pytest.fixture(scope="module")
def walker(real_vocabulary: Vocabulary) -> Walker:
    return Walker(with_xtml_markers(real_vocabulary))


@pytest.mark.slow
def test_random_arguments_of_real_tools(walker: Walker) -> None:
    engine = LLGuidanceEngine(walker.vocabulary)
    shuffled = 0
    for number, tool in enumerate(tool for server in mcp_servers() for tool in server):
        schema = tool["function"].get("parameters") or {"type": "object"}
        grammar = engine.compile(json.dumps(schema | {"type": "object"}), "forbid", "xtml")
        validator = validator_of(schema)
        arguments = decode(walker.vocabulary, walker.walk(grammar, number))
        if grammar.coverage.is_sound:
            validator.validate(arguments)
        assert arguments.keys() >= set(schema.get("required", ())), arguments
        order = random.Random(number).sample(list(arguments), len(arguments))
        assert walker.accepts(grammar, pieces({key: arguments[key] for key in order})), arguments
        shuffled += len(order) > 1
    assert shuffled > 100
