"""Reports which keywords of a schema are enforced. Needs no model: its vocabulary is the 256 bytes."""

import json
from functools import cache
from typing import Any

from constrained_k2.compiler.compiler import Compiler
from constrained_k2.compiler.shared import GrammarOptions
from constrained_k2.errors import InvalidRequest, SchemaTooCostly, UnsupportedSchema, kind_of_json
from constrained_k2.formats.base import WireFormat
from constrained_k2.formats.kimi_k2 import KIMI_K2
from constrained_k2.request.spec import EngineName
from constrained_k2.request.strictness import DEFAULT_POLICY, StrictPolicy
from constrained_k2.schema.coverage import Coverage, refusal
from constrained_k2.schema.document import SchemaDocument
from constrained_k2.schema.undeclared_keys import DEFAULT, UndeclaredKeys, read_undeclared_keys
from constrained_k2.vocabulary.vocabulary import Vocabulary

COMPILE_SECONDS = 10.0  # limit for each schema


def schema_coverage(
    schema: Any,
    engine: EngineName = "llguidance",
    *,
    undeclared_keys: UndeclaredKeys = DEFAULT,
    wire_format: WireFormat = KIMI_K2,
) -> Coverage:
    """Report for each keyword of a tool's decoded ``parameters`` whether an engine's grammar enforces it.

    If no grammar can be built, the reason is under ``refused``. ``undeclared_keys`` is as for :class:`Compiler`.
    ``wire_format`` is the model's format: Kimi K3 writes strings without quotes and escapes.

    Raises:
        InvalidRequest: The schema is not a JSON object, or another argument is invalid.
    """
    if not isinstance(schema, dict):
        raise InvalidRequest(f"must be a JSON object, not {kind_of_json(schema)}", "schema")
    encoding = wire_format.argument_encoding
    options = GrammarOptions(undeclared_keys=read_undeclared_keys(undeclared_keys), encoding=encoding)
    try:
        return byte_compiler(wire_format=wire_format).grammar(json.dumps(schema), "", engine, options=options).coverage
    except (UnsupportedSchema, SchemaTooCostly) as error:
        return refusal(SchemaDocument(schema), engine, error.location, error.problem)


@cache
def byte_compiler(policy: StrictPolicy = DEFAULT_POLICY, wire_format: WireFormat = KIMI_K2) -> Compiler:
    """A compiler without a model, over the vocabulary of the 256 bytes and a format's markers."""
    return Compiler(Vocabulary.of_bytes(wire_format), policy=policy, compile_seconds=COMPILE_SECONDS)
