"""Schema coverage without a model: compiles over a vocabulary of the 256 bytes."""

import json
from functools import cache
from typing import Any

from constrained_k2.compiler.compiler import Compiler
from constrained_k2.compiler.shared import GrammarOptions
from constrained_k2.errors import InvalidRequest, SchemaTooCostly, UnsupportedSchema, kind_of_json
from constrained_k2.request.spec import EngineName
from constrained_k2.request.strictness import DEFAULT_POLICY, StrictPolicy
from constrained_k2.schema.coverage import Coverage, refusal
from constrained_k2.schema.document import SchemaDocument
from constrained_k2.schema.undeclared_keys import DEFAULT, UndeclaredKeys, read_undeclared_keys
from constrained_k2.vocabulary.vocabulary import Vocabulary

COMPILE_SECONDS = 10.0  # limit for each schema


def schema_coverage(
    schema: Any, engine: EngineName = "llguidance", *, undeclared_keys: UndeclaredKeys = DEFAULT
) -> Coverage:
    """Report what an engine's grammar does with each keyword of a tool's decoded ``parameters``.

    If no grammar can be built, the reason is under ``refused``. ``undeclared_keys`` is :class:`Compiler`'s.

    Raises:
        InvalidRequest: The schema is not a JSON object, or another argument is invalid.
    """
    if not isinstance(schema, dict):
        raise InvalidRequest(f"must be a JSON object, not {kind_of_json(schema)}", "schema")
    options = GrammarOptions(undeclared_keys=read_undeclared_keys(undeclared_keys))
    try:
        return byte_compiler().grammar(json.dumps(schema), "", engine, options=options).coverage
    except (UnsupportedSchema, SchemaTooCostly) as error:
        return refusal(SchemaDocument(schema), engine, error.location, error.problem)


@cache
def byte_compiler(policy: StrictPolicy = DEFAULT_POLICY) -> Compiler:
    """A compiler without a model, over the vocabulary of the 256 bytes."""
    return Compiler(Vocabulary.of_bytes(), policy=policy, compile_seconds=COMPILE_SECONDS)
