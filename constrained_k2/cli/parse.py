"""``constrained-k2 parse``: what raw completions hold."""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from constrained_k2.cli.reading import named_schemas, read_json, read_text
from constrained_k2.errors import InvalidRequest, MalformedCompletion
from constrained_k2.format import MARKER_TEXTS
from constrained_k2.parsing import LENIENCIES, PARSING_LEVELS, Completion, parse_completion
from constrained_k2.tools import ANY_OBJECT, Tool, ToolCall
from constrained_k2.vocabulary import Vocabulary

_DESCRIPTION = """\
Read raw completions by token id, as the server does, and print their content, reasoning and calls, what had to be
accepted beyond the format, and what is wrong.

A text is one completion; the texts of markers in it (<|tool_call_begin|>, </think>, …) are taken for the tokens. That
needs no tokenizer. Token ids (--ids) are one JSON array of integers a line, a completion each.

Wrong is: a call cut off, a stretch that is no call (strict level), a marker left over in the text, arguments that are
no JSON object and, where the tools are given, a call of none of them and arguments that are no instance of its schema.
Exit code 1 if anything is wrong.
"""


def add_parser(verbs: Any) -> None:
    """Add this verb."""
    parser = verbs.add_parser(
        "parse",
        help="content, reasoning and calls in raw completions",
        description=_DESCRIPTION,
        epilog="example: constrained-k2 parse completion.txt --tools request.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", nargs="?", default="-", metavar="FILE", help="- or nothing: standard input")
    parser.add_argument("--ids", action="store_true", help="the file holds token ids; needs --tokenizer")
    parser.add_argument("--tokenizer", type=Path, metavar="DIR", help="a Kimi tokenizer directory")
    parser.add_argument("--tools", metavar="TOOLS.json", help="a list of tools, or a request body with tools")
    parser.add_argument("--level", choices=PARSING_LEVELS, default="tolerant", help="(default: %(default)s)")
    parser.add_argument("--in-reasoning", action="store_true", help="the prompt ends in <think>, as K2.5's does")
    parser.add_argument("--json", action="store_true", help="one JSON object a completion")
    parser.set_defaults(run=run)


@dataclass(frozen=True, slots=True)
class Finding:
    """One completion, and what is wrong with it.

    Attributes:
        completion: What it holds.
        problems: Of each whole call, in order, what is wrong with it.
        others: What else is wrong.
    """

    completion: Completion
    problems: tuple[tuple[str, ...], ...]
    others: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.others or any(self.problems))

    def to_json(self) -> dict[str, Any]:
        """As ``--json`` prints it."""
        return {
            "content": self.completion.content,
            "reasoning": self.completion.reasoning,
            "tool_calls": [
                {
                    "id": call.id,
                    "name": call.name,
                    "index": call.index,
                    "arguments": call.arguments,
                    "written": call.written,
                    "leniencies": list(call.leniencies),
                    "errors": list(problems),
                }
                for call, problems in zip(self.completion.tool_calls, self.problems, strict=True)
            ],
            "cut_calls": [{"header": cut.header, "arguments": cut.arguments} for cut in self.completion.cut_calls],
            "malformed": list(self.completion.malformed),
            "errors": list(self.others),
        }


def run(options: argparse.Namespace) -> int:
    """Print what the completions hold; 1 if something is wrong."""
    if options.ids and options.tokenizer is None:
        raise InvalidRequest("token ids mean nothing without their tokenizer", "--ids", "Give --tokenizer DIR")
    vocabulary = Vocabulary.of_bytes() if options.tokenizer is None else Vocabulary.from_pretrained(options.tokenizer)
    tools = None if options.tools is None else _read_tools(read_json(options.tools))
    good = True
    for number, ids in enumerate(_completions(options, vocabulary)):
        completion = parse_completion(
            ids, vocabulary, in_reasoning=options.in_reasoning, level=options.level, tools=tools
        )
        finding = examine(completion, tools)
        good = good and finding.is_good
        if options.json:
            print(json.dumps(finding.to_json(), ensure_ascii=False))
        else:
            _show(finding, number)
    return int(not good)


def _completions(options: argparse.Namespace, vocabulary: Vocabulary) -> Iterator[list[int]]:
    if not options.ids:
        yield ids_of_text(read_text(options.file), vocabulary)
        return
    for number, line in enumerate(read_text(options.file).splitlines(), 1):
        if line.strip():
            yield _read_ids(line, f"line {number}", vocabulary)


def _read_ids(line: str, place: str, vocabulary: Vocabulary) -> list[int]:
    try:
        ids = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"is not JSON: {error}", place, "Write a JSON array of token ids a line") from error
    if not isinstance(ids, list) or not all(type(token_id) is int for token_id in ids):
        raise InvalidRequest("is no array of integers", place, "Write a JSON array of token ids a line")
    if strange := [token_id for token_id in ids if not 0 <= token_id < vocabulary.size]:
        raise MalformedCompletion(f"token id {strange[0]} is not in the vocabulary", place, "Give its own tokenizer")
    return ids


def ids_of_text(text: str, vocabulary: Vocabulary) -> list[int]:
    """Token ids of a raw text: special tokens' texts as these tokens, the rest as ordinary ones."""
    special = vocabulary.special_tokens
    ids: list[int] = []
    start = 0
    for found in re.finditer("|".join(map(re.escape, sorted(special, key=len, reverse=True))), text):
        ids += [*vocabulary.encode(text[start : found.start()]), special[found[0]]]
        start = found.end()
    return ids + vocabulary.encode(text[start:])


def _read_tools(document: Any) -> tuple[Tool, ...]:
    """The tools of a list, a request body, or MCP's ``inputSchema`` form."""
    if isinstance(document, dict):
        document = document.get("tools")
    if not isinstance(document, list):
        raise InvalidRequest("is neither a list of tools nor a request body", "tools")
    return tuple(
        Tool(name, ANY_OBJECT if schema is None else json.dumps(schema)) for name, schema in named_schemas(document)
    )


def examine(completion: Completion, tools: tuple[Tool, ...] | None) -> Finding:
    """Say what is wrong with a completion.

    Args:
        completion: What was read.
        tools: The tools that might be called; None if they are not known.
    """
    declared = {tool.name: tool for tool in tools or ()}
    problems = tuple(tuple(_problems(call, declared.get(call.name))) for call in completion.tool_calls)
    cut = (f"the call {cut.header or 'without an id'} is cut off" for cut in completion.cut_calls)
    malformed = (f"this is no call: {text[:200]!r}" for text in completion.malformed)
    text = f"{completion.reasoning}\n{completion.content}"
    left_over = (
        f"{MARKER_TEXTS[name]} stands in the text: what follows it could not be read as a call"
        for name in ("section_begin", "call_begin")
        if MARKER_TEXTS[name] in text
    )
    return Finding(completion, problems, (*cut, *malformed, *left_over))


def _problems(call: ToolCall, tool: Tool | None) -> Iterator[str]:
    if call.undeclared:
        yield f"no tool is named {call.name!r}"
    try:
        arguments = json.loads(call.arguments, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        yield f"the arguments are no JSON: {error}"
        return
    if not isinstance(arguments, dict):
        yield "the arguments are no JSON object"
    elif tool is not None:
        yield from _violations(arguments, tool)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _violations(arguments: Any, tool: Tool) -> Iterator[str]:
    """How arguments break their schema. References that leave the schema are not followed: nothing is fetched."""
    from jsonschema.exceptions import SchemaError, best_match
    from jsonschema.validators import Draft202012Validator, validator_for
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
    from referencing.exceptions import Unresolvable

    schema = tool.parameters
    validator = validator_for(schema, default=Draft202012Validator)
    try:
        validator.check_schema(schema)
        checker = validator(schema, format_checker=validator.FORMAT_CHECKER, registry=REGISTRY)
        error = best_match(checker.iter_errors(arguments))
    except (SchemaError, Unresolvable, RecursionError) as broken:
        raise InvalidRequest(
            f"the schema cannot be used: {str(broken).splitlines()[0]}", f"tools: {tool.name!r}", "Mend it"
        ) from broken
    if error is not None:
        yield f"the arguments break the schema at {error.json_path}: {error.message[:300]}"


def _show(finding: Finding, number: int) -> None:
    """Print one completion for a person."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    if number:
        console.rule(style="dim")

    def line(label: str, text: str, style: str = "") -> None:
        console.print(Text(f"{label:<12}", style="dim").append(text, style=style))

    completion = finding.completion
    if completion.reasoning:
        line("reasoning", repr(completion.reasoning), "italic")
    if completion.content:
        line("content", repr(completion.content))
    for call, problems in zip(completion.tool_calls, finding.problems, strict=True):
        line("call", f"{call.id} {call.arguments}", "green" if not problems else "")
        if call.written is not None:
            line("  written", repr(call.written))
        for leniency in call.leniencies:
            line("  leniency", f"{leniency}: {LENIENCIES[leniency]}", "yellow")
        for problem in problems:
            line("  error", problem, "red")
    for other in finding.others:
        line("error", other, "red")
    if finding == Finding(Completion(), (), ()):
        print("nothing", file=sys.stderr)
