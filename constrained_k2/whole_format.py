"""The whole tool-call format as one grammar text: for other servers, for people, and as an oracle for the tests."""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import Any

from constrained_k2.compiler import Compiler
from constrained_k2.errors import InvalidRequest
from constrained_k2.format import KIMI_K2, ToolCallFormat
from constrained_k2.grammar.structural_tag import StructuralTagWriter
from constrained_k2.grammar.whole_format import write_lark
from constrained_k2.policy import DEFAULT_POLICY, StrictPolicy
from constrained_k2.tools import EngineName, ToolCallSpec
from constrained_k2.vocabulary import Vocabulary

FORMATS: dict[EngineName, tuple[str, ...]] = {"llguidance": ("lark",), "xgrammar": ("structural-tag", "ebnf")}
"""Engine -> the formats that it takes, the default first."""

_SECONDS = 10.0


def build_grammar(  # noqa: PLR0913 - the last three have defaults that most keep
    spec: ToolCallSpec,
    engine: EngineName = "llguidance",
    format: str | None = None,  # noqa: A002 - the field's name, and that of the command line's option
    *,
    markers: ToolCallFormat = KIMI_K2,
    in_reasoning: bool = False,
    policy: StrictPolicy = DEFAULT_POLICY,
) -> str:
    """Write the grammar of a turn: text, reasoning where there may be some, and the calls that the request allows.

    ``lark`` says what this package's own matchers do; in the other formats properties have an order and a later call
    has any index. ``grammars/README.md`` lists where each differs.

    Args:
        spec: The request.
        engine: Who is to read it.
        format: ``lark`` for LLGuidance; ``structural-tag`` (the default) or ``ebnf`` for xgrammar.
        markers: The ids for ``structural-tag``. Lark and EBNF name the markers by their text.
        in_reasoning: Whether the prompt ends in ``<think>``.
        policy: How strictly tools may have their schemas kept.

    Raises:
        InvalidRequest: An engine that is not known, or one that does not take the format.
        UnsupportedSchema: A tool's schema has no grammar, or is strict and not kept whole.
        SchemaTooCostly: A tool's schema is over a budget.
    """
    if engine not in FORMATS:
        raise InvalidRequest(f"the engine {engine!r} is not known", "engine", f"Use one of {', '.join(FORMATS)}")
    if format is None:
        format = FORMATS[engine][0]  # noqa: A001 - see above
    if format not in FORMATS[engine]:
        raise InvalidRequest(
            f"{engine} does not take the format {str(format)[:40]!r}", "format", f"Use {' or '.join(FORMATS[engine])}"
        )
    if engine == "llguidance":
        return write_lark(spec, _lark_arguments(spec, policy), in_reasoning=in_reasoning)
    schemas = _xgrammar_schemas(spec, policy)
    if format == "ebnf":
        tag = StructuralTagWriter(spec, schemas, None, in_reasoning=in_reasoning).write()
        text: str = _xgrammar_text().ebnf(json.dumps(tag), _SECONDS)
        return text
    tag = StructuralTagWriter(spec, schemas, markers, in_reasoning=in_reasoning).write()
    return json.dumps(tag, ensure_ascii=False)


def _lark_arguments(spec: ToolCallSpec, policy: StrictPolicy) -> dict[str, str]:
    """Each function's arguments as the matchers' own engine has them, as the body of a Lark rule."""
    return {name: _nested(grammar) for name, grammar in _grammars(replace(spec, engine="llguidance"), policy)}


def _grammars(spec: ToolCallSpec, policy: StrictPolicy) -> Iterator[tuple[str, Any]]:
    """Each function that may be called, with the grammar of its arguments."""
    compiled = _compiler(policy).compile(spec)
    return ((tool.name, compiled.grammar(tool.name)) for tool in spec.tools if spec.max_calls != 0)


def _nested(grammar: Any) -> str:
    """A grammar of the engine's, as a grammar within another: its rules and terminals have names of their own."""
    text: str = grammar.text
    if text.startswith("{"):  # LLGuidance's own compiler takes the schema
        (only,) = json.loads(text)["grammars"]
        return f"%json {json.dumps(only['json_schema'], ensure_ascii=False)}"
    return f"%lark {{\n{text.strip()}\n}}"


def _xgrammar_schemas(spec: ToolCallSpec, policy: StrictPolicy) -> dict[str, Any]:
    """Each function's schema, rewritten into what xgrammar's converter keeps."""
    _xgrammar_text()
    return {name: json.loads(grammar.schema) for name, grammar in _grammars(replace(spec, engine="xgrammar"), policy)}


def _xgrammar_text() -> ModuleType:
    """The adapter; xgrammar is an extra.

    Raises:
        InvalidRequest: It is not installed.
    """
    try:
        from constrained_k2.engines import xgrammar_text
    except ModuleNotFoundError as error:
        raise InvalidRequest("xgrammar is not installed", "engine", "pip install 'constrained-k2[xgrammar]'") from error
    return xgrammar_text


@cache
def _compiler(policy: StrictPolicy) -> Compiler:
    return Compiler(Vocabulary.of_bytes(), "llguidance", policy=policy, compile_seconds=_SECONDS)
