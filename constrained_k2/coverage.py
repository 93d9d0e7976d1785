"""What an engine makes of each keyword of a schema, without a model: over a vocabulary of the 256 bytes."""

import json
from functools import cache
from typing import Any

from constrained_k2.compiler import Compiler
from constrained_k2.errors import InvalidRequest, SchemaTooCostly, UnsupportedSchema
from constrained_k2.schema.coverage import Coverage, refusal
from constrained_k2.schema.document import SchemaDocument
from constrained_k2.tools import EngineName
from constrained_k2.vocabulary import Vocabulary

_SECONDS = 10.0


def schema_coverage(schema: Any, engine: EngineName = "llguidance") -> Coverage:
    """What becomes of each keyword occurrence of a tool's schema.

    Args:
        schema: The decoded ``parameters`` of a tool; left as it is.
        engine: The grammar engine.

    Returns:
        The occurrences by JSON pointer. A schema without a grammar has its reason under ``refused``.

    Raises:
        InvalidRequest: It is no JSON object, or the engine is not known.
    """
    if not isinstance(schema, dict):
        raise InvalidRequest("a tool's schema is a JSON object", "schema")
    try:
        return _compiler(engine).grammar(json.dumps(schema), "").coverage
    except (UnsupportedSchema, SchemaTooCostly) as error:
        return refusal(SchemaDocument(schema), engine, error.place, error.problem)


@cache
def _compiler(engine: EngineName) -> Compiler:
    return Compiler(Vocabulary.of_bytes(), engine, compile_seconds=_SECONDS)
