"""The public JSON-Schema-Test-Suite: our grammars accept no invalid instance, and are no worse than the baseline."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from benchmarks.schemas import corpora
from benchmarks.schemas.arms import Outcome
from benchmarks.schemas.figures import SuiteFigures, is_no_worse, signature
from tests.kit.compilers import byte_compiler
from tests.kit.data import suite
from tests.kit.grammars import accepts, compile_schema

pytestmark = pytest.mark.slow

LLGUIDANCE = byte_compiler().engine("llguidance")
BASELINE = Path(__file__).parent / "baseline.json"
DRAFTS = {
    "draft2020-12": ("https://json-schema.org/draft/2020-12/schema", jsonschema.Draft202012Validator),
    "draft7": ("http://json-schema.org/draft-07/schema#", jsonschema.Draft7Validator),
}


def groups() -> Iterator[tuple[str, Path, dict[str, Any]]]:
    for draft, (uri, _) in DRAFTS.items():
        for path in sorted((suite() / draft).rglob("*.json")):
            if "optional" in path.parts and "format" not in path.parts:
                continue  # behaviour that the specification leaves open
            for group in json.loads(path.read_text()):
                schema = group["schema"]
                if isinstance(schema, dict):
                    schema = {"$schema": uri, **schema}
                yield draft, path, group | {"schema": schema}


def test_the_suite_is_no_worse_than_the_baseline() -> None:
    baseline: dict[str, str] = json.loads(BASELINE.read_text())
    figures = SuiteFigures()
    worse, seen = [], set()
    for case in corpora.suite(suite()):
        grammar = compile_schema(LLGUIDANCE, json.loads(case.schema))
        if grammar is None:
            outcome = Outcome(refusal="refused")
        else:
            relaxed = tuple(use.pointer for use in grammar.coverage.relaxed)
            accepted = tuple(accepts(grammar, json.loads(instance.text)) for instance in case.instances)
            outcome = Outcome(relaxed=relaxed, accepted=accepted)
        figures.add(case, outcome)
        seen.add(case.name)
        if not is_no_worse(signature(case, outcome), baseline[case.name]):
            worse.append((case.name, baseline[case.name], signature(case, outcome)))
    print(figures.groups, figures.instances)
    assert not worse, "if this is intended, regenerate it: benchmarks/schemas/__main__.py --write-baseline"
    assert seen == baseline.keys()
    assert not figures.count("invalid", accepted=True, status="whole")


@pytest.mark.parametrize(
    ("now", "before", "good"),
    [
        ("whole ++", "whole ++", True),
        ("whole ++", "relaxed +x", True),
        ("whole +n", "whole +n", True),
        ("whole ++", "refused", True),
        ("whole +n", "whole ++", False),
        ("whole +x", "whole +x", False),
        ("relaxed ++", "whole ++", False),
        ("refused", "relaxed ++", False),
    ],
)
def test_comparison_with_the_baseline(now: str, before: str, good: bool) -> None:
    assert is_no_worse(now, before) == good
