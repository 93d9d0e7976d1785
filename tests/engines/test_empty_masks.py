"""A mask without a token is never believed: LLGuidance computes it again, and the fault is counted and logged."""

import json
from hashlib import sha256

import pytest

from constrained_k2 import Compiler, Vocabulary
from constrained_k2.compiler.cache import CompileCounts
from constrained_k2.engines.llguidance.direct.masks import DirectMasks
from constrained_k2.engines.llguidance.direct.residual import Residual
from constrained_k2.engines.llguidance.position import StateKind
from tests.kit.grammars import request_of
from tests.kit.walks import ids_of

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}


def test_an_empty_mask_is_asked_of_llguidance(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    computed = DirectMasks._mask_of

    def faulty(self: DirectMasks, residual: Residual) -> object:
        return self.empty if residual.part is StateKind.IN_FREE_STRING else computed(self, residual)

    counts, vocabulary = CompileCounts(), Vocabulary.of_bytes()
    compiler = Compiler(vocabulary, counts=counts)
    matcher = request_of(compiler, SCHEMA).matcher()
    monkeypatch.setattr(DirectMasks, "_mask_of", faulty)
    markers = vocabulary.format
    head = [markers.section_begin, markers.call_begin, *b"functions.f:0", markers.argument_begin]
    assert matcher.accept_tokens([*head, *b'{"a":"'])
    assert ord("x") in ids_of(matcher)
    assert matcher.accept_tokens([*b'x"}', markers.call_end])
    assert counts.snapshot()["empty_masks"] == 1
    (line,) = [record.getMessage() for record in caplog.records]
    digest = sha256(json.dumps(SCHEMA, separators=(",", ":")).encode()).hexdigest()[:16]
    assert digest in line
    assert "allowed no token" in line
