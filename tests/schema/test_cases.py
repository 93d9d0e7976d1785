"""One file of cases for each keyword: what its grammars accept and reject, wherever coverage claims exactness.

A case is a schema with accepted and rejected instances, and the worst status under LLGuidance unless it is "enforced".
"""

import json
from collections.abc import Iterator
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from constrained_k2 import ConstrainedK2Error
from constrained_k2.engines.protocol import ArgumentGrammar
from constrained_k2.request.spec import EngineName
from constrained_k2.schema.document import MAPS, SchemaDocument
from constrained_k2.schema.keywords import KEYWORDS, ROWS, keyword_uses
from constrained_k2.schema.keywords.keyword import Children
from tests.kit.compilers import byte_compiler, narrowed
from tests.kit.format_oracles import FORMAT_CHECKER
from tests.kit.grammars import accepts

FOLDER = Path(__file__).parent / "cases"
CASES = [
    pytest.param(case, id=f"{path.stem}-{number}")
    for path in sorted(FOLDER.glob("*.json"))
    for number, case in enumerate(json.loads(path.read_text(encoding="utf-8")))
]


@cache
def compiled(schema: str, engine: EngineName) -> ArgumentGrammar | None:
    try:
        return byte_compiler().engine(engine).compile(schema)
    except ConstrainedK2Error:
        return None


def spellings(instance: Any) -> Iterator[tuple[Any, tuple[str, str]]]:
    """An instance with its properties in every order, compact and spaced."""
    for members in permutations(instance.items()) if isinstance(instance, dict) else [None]:
        for separators in ((",", ":"), (", ", ": ")):
            yield instance if members is None else dict(members), separators


def test_every_keyword_has_a_file() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == {keyword.lstrip("$") for keyword in KEYWORDS}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_a_file_is_about_its_keyword(path: Path) -> None:
    for case in json.loads(path.read_text(encoding="utf-8")):
        uses = {pointer.rpartition("/")[2].lstrip("$") for pointer in keyword_uses(SchemaDocument(case["schema"]))}
        assert path.stem in uses, case["schema"]


@pytest.mark.parametrize("case", CASES)
def test_jsonschema_agrees(case: dict[str, Any]) -> None:
    kind = jsonschema.validators.validator_for(case["schema"], jsonschema.Draft202012Validator)
    validator = kind(case["schema"], format_checker=FORMAT_CHECKER)
    assert all(validator.is_valid(instance) for instance in case["accepted"])
    assert not any(validator.is_valid(instance) for instance in case["rejected"])


@pytest.mark.parametrize("engine", ["llguidance", pytest.param("xgrammar", marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", CASES)
def test_grammars_accept_and_reject(case: dict[str, Any], engine: EngineName) -> None:
    grammar = compiled(json.dumps(case["schema"]), engine)
    status = "refused"
    if grammar is not None:
        coverage = grammar.coverage
        status = "relaxed" if coverage.relaxed else "narrowed" if coverage.narrowed else "enforced"
        if status == "narrowed" and "llguidance" not in case and not narrowed(coverage):
            status = "enforced"  # apart from the spelling of integers
    if engine == "llguidance":
        assert status == case.get("llguidance", "enforced"), grammar and grammar.coverage
    if grammar is None:
        return
    for instance in case["accepted"] if not narrowed(grammar.coverage) else ():
        written = [accepts(grammar, *spelling) for spelling in spellings(instance)]
        assert all(written) if engine == "llguidance" else any(written), instance  # xgrammar fixes the order
    for instance in case["rejected"] if status != "relaxed" else ():
        assert not any(accepts(grammar, *spelling) for spelling in spellings(instance)), instance


def test_the_document_knows_the_keywords_that_map_names_to_schemas() -> None:
    maps = {name for row in ROWS for name, children in row.names.items() if Children.MAP in children}
    assert maps | {"$defs", "definitions"} == MAPS
