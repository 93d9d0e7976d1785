"""Writes the whole tool-call format of a request as one grammar text.

The grammar covers everything that a model may answer to a chat-completions request: text, reasoning where the request
allows it, and calls of its tools. tool_choice, parallel_tool_calls, thinking, first_index and the calls in messages are
read as the server reads them.

--wire-format kimi-k3 writes Kimi K3's turns, as Lark alone. A request with "thinking": true begins inside the reasoning
there, which its prompt opens, as with --in-reasoning.

A tool whose schema has no grammar accepts any JSON object, and a line on standard error says so. If that tool is
strict, no grammar is printed and the exit code is 1.

formats and their limits:
  lark            For LLGuidance 1.7 or newer. As this package's own matchers: properties in any order, the expected
                  index, markers as special tokens. Differences: text cannot end, and a call cannot begin, inside a
                  broken UTF-8 character; a turn has at most a few hundred calls; undeclared keys, and the items of
                  uniqueItems, may repeat. Very large objects need LLGuidance's limits raised. vLLM's guidance
                  backend rejects Kimi's own tokenizer.
  structural-tag  For xgrammar 0.2 or newer, as vLLM takes it (structured_outputs.structural_tag, response_format).
                  Markers are Kimi K2's token ids. Properties only in the schema's order; any digits as the index unless
                  the request allows one call only; under vLLM xgrammar treats the other special tokens as plain text.
                  xgrammar silently drops many keywords, so the schemas are rewritten into keywords that it keeps;
                  'coverage --engine xgrammar' lists what is relaxed nevertheless.
  ebnf            For xgrammar: the same with markers as text. A call written as ordinary tokens counts as a call, and
                  text cannot contain the spelling of a marker. For people, and for engines without token formats.

example: constrained-k2 grammar grammars/single_tool/request.json --engine xgrammar --format ebnf
"""

import argparse
import json
import sys
from dataclasses import replace

from constrained_k2.cli.reading import WIRE_FORMATS, read_text
from constrained_k2.errors import SchemaTooCostly, UnsupportedSchema
from constrained_k2.schema.undeclared_keys import UNDECLARED_KEYS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    add = parser.add_argument
    add("request", nargs="?", default="-", metavar="REQUEST.json", help="a request body (default: standard input)")
    add("--engine", choices=("llguidance", "xgrammar"), default="llguidance", help="(default: %(default)s)")
    add("--format", choices=("lark", "structural-tag", "ebnf"), help="(default: the engine's first one above)")
    add("--wire-format", choices=WIRE_FORMATS, default="kimi-k2", help="the model's format (default: %(default)s)")
    add("--in-reasoning", action="store_true", help="the prompt opens the reasoning, as K2.5's <think> does")
    add("--undeclared-keys", choices=UNDECLARED_KEYS, help="as the request's field (default: what the request says)")
    add("--json", action="store_true", help='{"engine", "format", "grammar"} instead of the text alone')


def run(options: argparse.Namespace) -> int:
    """Print the grammar; 1 if a strict schema, or the grammar of a custom tool, cannot be compiled."""
    from constrained_k2.compiler.whole_turn import FORMATS, build_grammar
    from constrained_k2.request.spec import ToolCallSpec

    format_name = options.format or FORMATS[options.engine][0]
    spec = ToolCallSpec.from_json(read_text(options.request))
    if options.undeclared_keys:
        spec = replace(spec, undeclared_keys=options.undeclared_keys)
    try:
        markers = WIRE_FORMATS[options.wire_format]
        text = build_grammar(spec, options.engine, format_name, markers=markers, in_reasoning=options.in_reasoning)
    except (UnsupportedSchema, SchemaTooCostly) as error:
        print(f"constrained-k2: {error}", file=sys.stderr)
        return 1
    if options.json:
        text = json.dumps({"engine": options.engine, "format": format_name, "grammar": text}, ensure_ascii=False)
    print(text.rstrip("\n"))
    return 0
