"""A second opinion on schemas that are called unsatisfiable: a search for an instance that a validator accepts."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import llguidance

from benchmarks.baselines.json_schema import LLGuidanceBuiltin
from benchmarks.schemas.corpora import Case
from benchmarks.schemas.walks import walk
from constrained_k2.vocabulary.vocabulary import Vocabulary

_WALKS = 200


def disproof(case: Case) -> str:
    """Return an instance of a schema as JSON, or nothing if none is found.

    The candidates are MaskBench's instances, the values that the schema mentions, and random instances of a wider
    grammar: LLGuidance's converter, which leaves out what it does not know, and takes oneOf as anyOf.
    """
    schema = json.loads(case.schema)
    validator: Any = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)(schema)
    for text in (*(instance.text for instance in case.instances), *_mentioned(schema), *_wider(case.schema)):
        if validator.is_valid(json.loads(text)):
            return text
    return ""


def _mentioned(schema: Any) -> Iterator[str]:
    """Yield the values of ``const``, ``enum``, ``default`` and ``examples`` anywhere in a schema, and plain ones."""
    yield from ("null", "true", "false", "0", "1", '""', '"a"', "[]", "{}", "[0]", '{"a":0}')
    rest = [schema]
    while rest:
        part = rest.pop()
        rest += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        if isinstance(part, dict):
            values = [part[key] for key in ("const", "default") if key in part]
            values += [value for key in ("enum", "examples") if isinstance(part.get(key), list) for value in part[key]]
            yield from map(json.dumps, values)


def _wider(schema: str) -> Iterator[str]:
    vocabulary = Vocabulary.of_bytes()
    text = llguidance.LLMatcher.grammar_from_json_schema(schema, overrides={"lenient": True, "coerce_one_of": True})
    try:
        grammar = LLGuidanceBuiltin(vocabulary).compile_grammar(text)
    except ValueError:
        return  # it finds no value either, or has no such grammar
    for seed in range(_WALKS):
        walked = walk(grammar, vocabulary, json.loads(schema), seed)
        if walked.ended:
            yield walked.text
