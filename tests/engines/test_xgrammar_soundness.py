"""The soundness of xgrammar's coverage: if nothing is relaxed, only valid JSON is accepted."""

import json
from collections import Counter
from functools import cache
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from constrained_k2.engines.xgrammar.engine import XGrammarEngine
from tests.kit.budget import tries
from tests.kit.compilers import byte_compiler
from tests.kit.format_oracles import FORMAT_CHECKER
from tests.kit.grammars import accepts, compile_schema, walk
from tests.schema.test_differential import SCHEMAS, VALUES
from tests.schema.test_suite import DRAFTS, groups


@cache
def engine() -> XGrammarEngine:
    return XGrammarEngine(byte_compiler().vocabulary)


@pytest.mark.slow
def test_no_invalid_instance_is_accepted_where_nothing_is_relaxed() -> None:
    counts: Counter[str] = Counter()
    wrong = []
    for draft, path, group in groups():
        grammar = compile_schema(engine(), group["schema"])
        kind = "refused" if grammar is None else "sound" if grammar.coverage.is_sound else "relaxed"
        counts[f"groups {kind}"] += 1
        if grammar is None:
            continue
        for case in group["tests"]:
            try:
                is_accepted = accepts(grammar, case["data"])
            except UnicodeEncodeError:
                continue  # a lone surrogate, which no tokenizer has
            counts[f"{kind} {'valid' if case['valid'] else 'invalid'} {'accepted' if is_accepted else 'rejected'}"] += 1
            if is_accepted and not case["valid"] and kind == "sound":
                wrong.append((path.name, group["description"], case["description"]))
        written = walk(grammar, len(counts))
        if written is None or r"\\p{" in json.dumps(group["schema"]):
            continue  # did not end; or Python's re, which the oracle uses, has no \p
        counts["written"] += 1
        validator = DRAFTS[draft][1]
        value = json.loads(written)
        if kind == "sound" and not validator(group["schema"], format_checker=FORMAT_CHECKER).is_valid(value):
            wrong.append((path.name, group["description"], written))
    print(dict(sorted(counts.items())))
    assert not wrong
    # A ratchet: it may only get better.
    assert counts["groups sound"] >= 519
    assert counts["sound invalid rejected"] >= 1_059
    assert counts["sound valid accepted"] >= 1_378
    assert counts["groups refused"] <= 62


@pytest.mark.slow
@settings(max_examples=tries(133, everything=400), deadline=None, suppress_health_check=list(HealthCheck))
@given(SCHEMAS, st.lists(VALUES, min_size=1, max_size=8), st.integers(0, 2**32))
@example({"type": "number", "minimum": 1.5, "maximum": 2.5}, [1.5, 2, 2.5], 0)
def test_what_is_accepted_is_valid_where_nothing_is_relaxed(schema: Any, values: list[Any], seed: int) -> None:
    grammar = compile_schema(engine(), schema)
    if grammar is None:
        return
    written = walk(grammar, seed)
    if grammar.coverage.is_sound:
        validator = jsonschema.Draft202012Validator(schema, format_checker=FORMAT_CHECKER)
        assert written is None or validator.is_valid(json.loads(written)), (schema, written)
        for value in values:
            if accepts(grammar, value):
                assert validator.is_valid(value), (schema, value)
