"""Parses raw completions into content, reasoning and calls, and checks them.

Completions are parsed by token id, as the server parses them. The output names the recoveries that the tolerant level
used, and every error.

A text file is one completion; the texts of markers in it (<|tool_call_begin|>, </think>, …) are read as the tokens, so
no tokenizer is needed, only the name of the format. With --ids each line is one completion: a JSON array of token ids.

Errors are: a call cut off, text in a section that is not a call (strict level), a marker left in the text, arguments
that are not a JSON object and, with --tools, a call of an unknown tool and arguments that break the tool's schema. Exit
code 1 if there is an error.

example: constrained-k2 parse completion.txt --tools request.json
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from constrained_k2.cli.reading import WIRE_FORMATS, decode_json, named_schemas, read_json, read_text
from constrained_k2.errors import InvalidRequest, MalformedCompletion
from constrained_k2.formats.base import WireFormat
from constrained_k2.formats.kimi_k2 import KIMI_K2
from constrained_k2.parsing import PARSING_LEVELS, Completion, parse_completion
from constrained_k2.parsing.arguments import refuse_constant
from constrained_k2.parsing.events import RECOVERIES
from constrained_k2.prompts.special_text import SpecialTexts
from constrained_k2.request.spec import ANY_OBJECT, Tool, ToolCall
from constrained_k2.vocabulary.vocabulary import Vocabulary


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    add = parser.add_argument
    add("file", nargs="?", default="-", metavar="FILE", help="(default: standard input)")
    add("--ids", action="store_true", help="the file has token ids; needs --tokenizer")
    add("--tokenizer", type=Path, metavar="DIR", help="a Kimi tokenizer directory, which tells the format")
    add(
        "--format", choices=WIRE_FORMATS, default="kimi-k2", help="of a text without a tokenizer (default: %(default)s)"
    )
    add("--tools", metavar="TOOLS.json", help="tools as the verb coverage reads them")
    add("--level", choices=PARSING_LEVELS, default="tolerant", help="(default: %(default)s)")
    add("--in-reasoning", action="store_true", help="the prompt opens the reasoning, as those of K2.5 and K3 do")
    add("--json", action="store_true", help="one JSON object a completion")


def run(options: argparse.Namespace) -> int:
    """Print the parsed completions; 1 if one has an error."""
    if options.ids and options.tokenizer is None:
        raise InvalidRequest("token ids need their tokenizer", "--ids", "Give --tokenizer DIR")
    vocabulary = (
        Vocabulary.of_bytes(WIRE_FORMATS[options.format])
        if options.tokenizer is None
        else Vocabulary.from_pretrained(options.tokenizer)
    )
    tools = None if options.tools is None else _read_tools(read_json(options.tools))
    how = {"in_reasoning": options.in_reasoning, "level": options.level, "tools": tools}
    good = True
    for number, ids in enumerate(_completions(options, vocabulary)):
        found = examine(parse_completion(ids, vocabulary, **how), tools, vocabulary.format)
        good = good and not (found["errors"] or any(call["errors"] for call in found["tool_calls"]))
        if options.json:
            print(json.dumps(found, ensure_ascii=False))
        else:
            _show(found, number)
    return int(not good)


def _completions(options: argparse.Namespace, vocabulary: Vocabulary) -> Iterator[list[int]]:
    if not options.ids:
        yield SpecialTexts(vocabulary.special_tokens).encode(read_text(options.file), vocabulary)
        return
    for number, line in enumerate(read_text(options.file).splitlines(), 1):
        if not line.strip():
            continue
        location = f"line {number}"
        ids = decode_json(line, location)
        if not isinstance(ids, list) or not all(type(token_id) is int for token_id in ids):
            raise InvalidRequest("is not an array of integers", location, "Write one JSON array of token ids a line")
        if strange := [token_id for token_id in ids if not 0 <= token_id < vocabulary.size]:
            problem = f"token id {strange[0]} is not in the vocabulary"
            raise MalformedCompletion(problem, location, "Give its model's tokenizer")
        yield ids


def _read_tools(document: Any) -> tuple[Tool, ...]:
    tools = named_schemas(document)
    return tuple(Tool(name, ANY_OBJECT if schema is None else json.dumps(schema)) for name, schema in tools)


def examine(
    completion: Completion, tools: tuple[Tool, ...] | None, wire_format: WireFormat = KIMI_K2
) -> dict[str, Any]:
    """Return a completion and its errors as ``--json`` prints them; ``tools`` is None if they are unknown."""
    declared = {tool.name: tool for tool in tools or ()}
    text = f"{completion.reasoning}\n{completion.content}"
    fields = ("id", "name", "index", "arguments", "written", "recoveries")
    opening = dict.fromkeys(wire_format.marker_texts[name] for name in ("section_begin", "call_begin"))
    left = [marker for marker in opening if marker in text]
    return {
        "content": completion.content,
        "reasoning": completion.reasoning,
        "tool_calls": [
            {
                **{field: getattr(call, field) for field in fields},
                "errors": list(_problems(call, declared.get(call.name))),
            }
            for call in completion.tool_calls
        ],
        "cut_calls": [{"header": cut.header, "arguments": cut.arguments} for cut in completion.cut_calls],
        "malformed": completion.malformed,
        "errors": [
            *(f"call {cut.header or 'without an id'} is cut off" for cut in completion.cut_calls),
            *(f"not a call: {text[:200]!r}" for text in completion.malformed),
            *(f"{marker} is left in the text: what follows is not a call" for marker in left),
        ],
    }


def _problems(call: ToolCall, tool: Tool | None) -> Iterator[str]:
    if call.undeclared:
        yield f"unknown tool {call.name!r}"
    try:
        arguments = json.loads(call.arguments, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        yield f"the arguments are not JSON: {error}"
        return
    if not isinstance(arguments, dict):
        yield "the arguments are not a JSON object"
    elif tool is not None and (found := _violation(arguments, tool)):
        yield f"the arguments break the schema at {found.json_path}: {found.message[:300]}"


def _violation(arguments: Any, tool: Tool) -> Any:
    """Return jsonschema's error, if any."""
    from jsonschema.exceptions import SchemaError, best_match
    from referencing.exceptions import Unresolvable

    from constrained_k2.evaluation.judge import validator_of

    validator = validator_of(tool.parameters)
    try:
        validator.check_schema(validator.schema)
        return best_match(validator.iter_errors(arguments))
    except (SchemaError, Unresolvable, RecursionError) as broken:
        problem = f"the schema cannot be used: {str(broken).splitlines()[0]}"
        raise InvalidRequest(problem, f"tools: {tool.name!r}", "Correct it") from broken


def _show(found: dict[str, Any], number: int) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    if number:
        console.rule(style="dim")

    def line(label: str, text: str, style: str = "") -> None:
        console.print(Text(f"{label:<12}", style="dim").append(text, style=style))

    if found["reasoning"]:
        line("reasoning", repr(found["reasoning"]), "italic")
    if found["content"]:
        line("content", repr(found["content"]))
    for call in found["tool_calls"]:
        line("call", f"{call['id']} {call['arguments']}", "" if call["errors"] else "green")
        if call["written"] is not None:
            line("  written", repr(call["written"]))
        for recovery in call["recoveries"]:
            line("  recovery", f"{recovery}: {RECOVERIES[recovery]}", "yellow")
        for problem in call["errors"]:
            line("  error", problem, "red")
    for problem in found["errors"]:
        line("error", problem, "red")
    if not any(found.values()):
        print("nothing", file=sys.stderr)
