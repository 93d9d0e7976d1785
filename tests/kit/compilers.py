"""The compiler that the schema tests share."""

import json
from functools import cache
from typing import Any

import jsonschema

from constrained_k2 import Compiler, Vocabulary
from constrained_k2.schema.coverage import Coverage, KeywordUse
from constrained_k2.vocabulary.bitmask import allocate_bitmask
from tests.kit.format_oracles import FORMAT_CHECKER


@cache
def byte_compiler() -> Compiler:
    """A compiler over the 256 bytes: the meaning of a schema does not depend on the vocabulary."""
    return Compiler(Vocabulary.of_bytes(), undeclared_keys="allow")


def accepts(compiler: Compiler, schema: Any, text: str) -> bool:
    """True if a text can be written under a schema, with a mask before each byte."""
    matcher = compiler.grammar(json.dumps(schema), "schema").matcher("schema")
    row = allocate_bitmask(1, compiler.vocabulary.size)[0]
    for byte in text.encode():
        matcher.fill(row)
        if not matcher.accept(byte):
            return False
    return matcher.is_complete()


def narrowed(coverage: Coverage) -> list[KeywordUse]:
    """The narrowed keywords, without those narrowed only because an integer has one spelling."""
    return [use for use in coverage.narrowed if not use.reason.startswith("1.0 and 1e3")]


def validator_of(schema: Any) -> Any:
    """The validator of a public tool's schema."""
    for draft in (jsonschema.Draft202012Validator, jsonschema.Draft4Validator):  # one public tool has draft 4
        try:
            draft.check_schema(schema)
        except jsonschema.SchemaError:
            continue
        return draft(schema, format_checker=FORMAT_CHECKER)
    raise AssertionError(schema)
