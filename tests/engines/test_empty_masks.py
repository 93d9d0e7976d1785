"""A mask without a token is never believed: LLGuidance computes it again, and the fault is counted and logged."""

import json
from hashlib import sha256

import pytest

from constrained_k2 import Compiler, ToolCallSpec, Vocabulary, allocate_bitmask
from constrained_k2.compiler.cache import CompileCounts
from constrained_k2.engines.llguidance.direct.masks import DirectMasks
from constrained_k2.engines.llguidance.direct.residual import Residual
from constrained_k2.engines.llguidance.position import Expect
from constrained_k2.vocabulary.bitmask import allowed_ids

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}


def test_an_empty_mask_is_asked_of_llguidance(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    computed = DirectMasks._mask_of

    def faulty(self: DirectMasks, residual: Residual) -> object:
        return self.empty if residual.part is Expect.IN_FREE_STRING else computed(self, residual)

    counts, vocabulary = CompileCounts(), Vocabulary.of_bytes()
    compiler = Compiler(vocabulary, counts=counts)
    tool = {"type": "function", "function": {"name": "t", "parameters": SCHEMA}}
    matcher = compiler.compile(ToolCallSpec.from_openai({"tools": [tool], "tool_choice": "required"})).matcher()
    monkeypatch.setattr(DirectMasks, "_mask_of", faulty)
    markers, row = vocabulary.format, allocate_bitmask(1, vocabulary.size)
    head = [markers.section_begin, markers.call_begin, *b"functions.t:0", markers.argument_begin]
    assert matcher.accept_tokens([*head, *b'{"a":"'])
    matcher.fill_bitmask(row)
    assert ord("x") in allowed_ids(row[0])
    assert matcher.accept_tokens([*b'x"}', markers.call_end])
    assert counts.snapshot()["empty_masks"] == 1
    (line,) = [record.getMessage() for record in caplog.records]
    digest = sha256(json.dumps(SCHEMA, separators=(",", ":")).encode()).hexdigest()[:16]
    assert digest in line
    assert "allowed no token" in line
