"""``constrained-k2 grammar``: the whole tool-call format of a request as one grammar text."""

import argparse
import json
import sys
from typing import Any

from constrained_k2.cli.reading import read_text
from constrained_k2.errors import SchemaTooCostly, UnsupportedSchema

_DESCRIPTION = """\
Write the grammar of everything that a model may answer to a chat-completions request: text, reasoning where the request
allows it, and the calls of its tools. tool_choice, parallel_tool_calls, thinking, first_index and the calls in messages
are read as the server reads them.

formats, and what each cannot do:
  lark            LLGuidance, all that this package's own matchers do: any property order, the index that is due,
                  markers as special tokens, found by their text in the reader's tokenizer. Differences: text may not
                  end, nor a call begin, inside a broken UTF-8 character; a turn has room for some hundred calls, not
                  for any number. Needs LLGuidance 1.7 or newer; very large objects also its limits raised. vLLM's
                  guidance backend refuses Kimi's own tokenizer.
  structural-tag  xgrammar, as vLLM takes it (structured_outputs.structural_tag, response_format). Markers are Kimi K2's
                  token ids (xgrammar 0.2 and newer). Properties in the schema's order only; any digits as the index
                  unless the request allows one call only; under vLLM the other special tokens are plain text to
                  xgrammar, in answers and in JSON strings. xgrammar drops many keywords without a word, so the schemas
                  are rewritten into what it keeps; 'coverage --engine xgrammar' says what is relaxed even so.
  ebnf            xgrammar, the same with markers as text: a call spelled out of ordinary tokens is a call to it, and a
                  text can never hold a marker's spelling. For people, and for engines without token formats.
"""


def add_parser(verbs: Any) -> None:
    """Add this verb."""
    parser = verbs.add_parser(
        "grammar",
        help="the whole tool-call format of a request as one grammar text",
        description=_DESCRIPTION,
        epilog="example: constrained-k2 grammar grammars/single_tool/request.json --engine xgrammar --format ebnf",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "request", nargs="?", default="-", metavar="REQUEST.json", help="a request body; - or nothing: standard input"
    )
    parser.add_argument(
        "--engine", choices=("llguidance", "xgrammar"), default="llguidance", help="who is to read it (%(default)s)"
    )
    parser.add_argument(
        "--format",
        choices=("lark", "structural-tag", "ebnf"),
        help="lark for llguidance; structural-tag (the default there) or ebnf for xgrammar",
    )
    parser.add_argument("--in-reasoning", action="store_true", help="the prompt ends in <think>, as K2.5's does")
    parser.add_argument("--json", action="store_true", help='{"engine", "format", "grammar"} instead of the text alone')
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the grammar; 1 if a schema has none."""
    from constrained_k2.tools import ToolCallSpec
    from constrained_k2.whole_format import FORMATS, build_grammar

    format_name = options.format or FORMATS[options.engine][0]
    spec = ToolCallSpec.from_json(read_text(options.request))
    try:
        text = build_grammar(spec, options.engine, format_name, in_reasoning=options.in_reasoning)
    except (UnsupportedSchema, SchemaTooCostly) as error:
        print(f"constrained-k2: {error}", file=sys.stderr)
        return 1
    if options.json:
        text = json.dumps({"engine": options.engine, "format": format_name, "grammar": text}, ensure_ascii=False)
    print(text.rstrip("\n"))
    return 0
