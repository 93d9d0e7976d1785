"""Writes the grammar of one assistant message as Lark, EBNF or an xgrammar structural tag."""

import json
import logging
from dataclasses import replace
from typing import Any

from constrained_k2.compiler.compiled import schema_location
from constrained_k2.compiler.coverage import COMPILE_SECONDS, byte_compiler
from constrained_k2.errors import InvalidRequest, missing_dependency
from constrained_k2.formats.base import WireFormat
from constrained_k2.formats.kimi_k2 import KIMI_K2
from constrained_k2.grammar.lark.terminals import NO_FORCING
from constrained_k2.grammar.whole_turn.lark import write_lark
from constrained_k2.grammar.whole_turn.structural_tag import StructuralTagWriter
from constrained_k2.request.spec import EngineName, ToolCallSpec
from constrained_k2.request.strictness import DEFAULT_POLICY, StrictPolicy
from constrained_k2.threads.compile_pool import run_bounded

_logger = logging.getLogger(__name__)
FORMATS: dict[EngineName, tuple[str, ...]] = {"llguidance": ("lark",), "xgrammar": ("structural-tag", "ebnf")}
"""Engine -> its grammar formats, the default first."""


def build_grammar(  # noqa: PLR0913 - the last three have defaults that most keep
    spec: ToolCallSpec,
    engine: EngineName = "llguidance",
    format: str | None = None,  # noqa: A002 - the field's name, and that of the command line's option
    *,
    markers: WireFormat = KIMI_K2,
    in_reasoning: bool = False,
    policy: StrictPolicy = DEFAULT_POLICY,
) -> str:
    """Write the grammar of a turn: text, reasoning if enabled, and the calls that the request allows.

    ``lark`` accepts the same turns as this package's matchers. In the other formats properties have a fixed order, and
    calls after the first may have any index. ``grammars/README.md`` lists all differences.

    Args:
        spec: The request.
        engine: The engine that will read the grammar.
        format: ``lark`` for LLGuidance; ``structural-tag`` (the default) or ``ebnf`` for xgrammar.
        markers: The wire format, with the marker ids for ``structural-tag``: Lark and EBNF refer to markers by their
            text. xgrammar's formats are Kimi K2's only.
        in_reasoning: True if the prompt opens the reasoning, as ``<think>`` does. Kimi K3's prompts open it if the
            request enables thinking.
        policy: How strictly schemas are enforced. A schema without a grammar becomes any JSON object, and is logged.

    Raises:
        InvalidRequest: The engine is unknown or not installed, or does not support the format, or the request forbids
            repeated calls.
    """
    if engine not in FORMATS:
        raise InvalidRequest(f"unknown engine {engine!r}", "engine", f"Use {' or '.join(map(repr, FORMATS))}")
    format = FORMATS[engine][0] if format is None else format  # noqa: A001 - see above
    if format not in FORMATS[engine]:
        supported = " or ".join(map(repr, FORMATS[engine]))
        raise InvalidRequest(f"{engine} does not support the format {str(format)[:40]!r}", "format", f"Use {supported}")
    if engine == "xgrammar" and markers.argument_encoding != "json":
        problem = f"xgrammar's formats cannot express {markers.name}'s arguments"
        raise InvalidRequest(problem, "engine", "Use 'llguidance'")
    if spec.repeated_calls == "forbid":
        problem = "no grammar of a whole turn can compare its calls"
        raise InvalidRequest(problem, "repeated_calls", "Leave it out, or use the matcher")
    compiled: Any = byte_compiler(policy, markers).compile(replace(spec, engine=engine))
    for name, use in compiled.without_grammar.items():
        _logger.warning("%s: %s", schema_location(name), ascii(f"{use.pointer} ({use.reason})"))
    tools = [tool.name for tool in spec.tools if spec.max_calls != 0]
    if engine == "llguidance":
        arguments = {name: _nested(compiled.grammar(name).text) for name in tools}
        form = None if spec.answer is None else _nested(compiled.answer_grammar.text)
        return write_lark(spec, arguments, form, wire_format=markers, in_reasoning=in_reasoning)
    try:
        from constrained_k2.engines.xgrammar import ebnf
    except ModuleNotFoundError as error:
        raise InvalidRequest(missing_dependency(error), "engine") from error
    schemas = {name: json.loads(compiled.grammar(name).schema) for name in tools}
    schema = None if spec.answer is None else json.loads(compiled.answer_grammar.schema)
    tag = StructuralTagWriter(spec, schemas, None if format == "ebnf" else markers, in_reasoning, schema).write()
    if format == "ebnf":
        return run_bounded(lambda: ebnf(json.dumps(tag)), COMPILE_SECONDS)
    return json.dumps(tag, ensure_ascii=False)


def _nested(text: str) -> str:
    """Return a grammar as the body of a rule; its own rules and terminals stay local to it."""
    return f"%lark {{\n{text.removeprefix(NO_FORCING).strip()}\n}}"
