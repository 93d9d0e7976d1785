"""Reports which keywords of your tools' schemas are enforced.

It prints for each tool how many keywords are enforced exactly, and lists the others by status:

  narrowed   The grammar allows only some of the values that the keyword allows. Every call is still valid.
  relaxed    The grammar also allows values that the keyword forbids.
  refused    The tool has no grammar. On a server it accepts any JSON object. The request gets HTTP 400 instead if the
             tool has "strict": true, or is a custom tool with a grammar.

The file is a list of tools of OpenAI, Anthropic or MCP, a request body with tools, an MCP server's answer to
tools/list, or one JSON Schema. The exit code is 1 if anything is relaxed or refused, 2 if the file is something else.
--format kimi-k3 reports on Kimi K3's arguments, whose strings have no quotes and no escapes. Only LLGuidance has
grammars for them.

example: constrained-k2 coverage tools.json
"""

import argparse
import json
from collections.abc import Iterator
from typing import Any

from constrained_k2.cli.reading import FORMS, WIRE_FORMATS, named_tools, read_json, tools_in
from constrained_k2.compiler.coverage import byte_compiler, schema_coverage
from constrained_k2.errors import ConstrainedK2Error, InvalidRequest
from constrained_k2.request.spec import ENGINES, EngineName, ToolCallSpec
from constrained_k2.request.tools import declared_schema
from constrained_k2.schema.coverage import STATUSES, Coverage, KeywordUse, Status
from constrained_k2.schema.document import DEFINITIONS
from constrained_k2.schema.keywords import KEYWORDS
from constrained_k2.schema.undeclared_keys import DEFAULT, UNDECLARED_KEYS

_MAX_SHOWN = 5
_OF_SCHEMAS = frozenset({*KEYWORDS, *DEFINITIONS, "$schema", "$id"})
_COLORS: dict[Status, str] = {
    "enforced": "green",
    "narrowed": "cyan",
    "read_as": "blue",
    "relaxed": "yellow",
    "refused": "red",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    add = parser.add_argument
    add("tools", nargs="?", default="-", help="a JSON file, or - for standard input")
    add("--engine", choices=ENGINES, default="llguidance", help="(default: %(default)s)")
    add("--format", choices=WIRE_FORMATS, default="kimi-k2", help="of the model's calls (default: %(default)s)")
    add("--undeclared-keys", choices=UNDECLARED_KEYS, default=DEFAULT, help="(default: %(default)s)")
    add("--json", action="store_true", help="every keyword with its JSON pointer, as JSON")


def run(options: argparse.Namespace) -> int:
    """Show the coverage; 1 if something is relaxed or refused."""
    how = {"undeclared_keys": options.undeclared_keys, "wire_format": WIRE_FORMATS[options.format]}
    found = [
        (name, _of_custom_tool(custom, options) if custom else schema_coverage(schema, options.engine, **how))
        for name, schema, custom in _schemas(read_json(options.tools))
    ]
    if options.json:
        print(json.dumps([{"tool": name} | coverage.to_json() for name, coverage in found], indent=2))
    else:
        _show(found, options.engine)
    return int(not all(coverage.is_sound for _, coverage in found))


def _of_custom_tool(tool: dict[str, Any], options: argparse.Namespace) -> Coverage:
    """The coverage of a custom tool with a grammar, which is enforced or refused as a whole."""
    try:
        spec = ToolCallSpec.from_openai({"tools": [tool], "engine": options.engine})
        return byte_compiler(wire_format=WIRE_FORMATS[options.format]).compile(spec).coverage(tool["name"])
    except ConstrainedK2Error as error:
        return Coverage(options.engine, refused=(KeywordUse("#/format", error.problem),))


def _schemas(document: Any) -> Iterator[tuple[str, Any, dict[str, Any] | None]]:
    """Yield (name, schema, custom tool) for each tool, or for one bare schema.

    The third item is None unless the tool is a custom tool with a grammar.
    """
    if isinstance(document, dict) and tools_in(document) is None:
        if document and document.keys().isdisjoint(_OF_SCHEMAS):
            problem = "holds no tools, and no keyword of JSON Schema at its top level"
            raise InvalidRequest(problem, "tools", f"Give {FORMS}, or one JSON Schema")
        yield "schema", document, None
        return
    for tool in named_tools(document):
        function, schema = tool.get("function", tool), declared_schema(tool)[0]
        custom = tool if tool.get("type") == "custom" and tool.get("format") else None
        yield function["name"], schema if schema not in (None, {}) else {"type": "object"}, custom


def _show(found: list[tuple[str, Coverage]], engine: EngineName) -> None:
    """Print a table of counts, then every reason once with the locations it applies to."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    table = Table("tool", box=None, header_style="bold", pad_edge=False)
    for status in STATUSES:
        table.add_column(_shown(status), justify="right")
    for name, coverage in found:
        numbers = ((_count(coverage, status), _COLORS[status]) for status in STATUSES)
        counts = (Text(str(number), style=color) if number else Text("·", style="dim") for number, color in numbers)
        table.add_row(Text(name), *counts)
    console.print(table)
    for status in STATUSES[:0:-1]:
        locations: dict[str, list[str]] = {}  # by the reason that applies to them
        for name, use in ((name, use) for name, coverage in found for use in coverage.by_status()[status]):
            locations.setdefault(use.reason, []).append(f"{name} {use.pointer}")
        for reason, uses in locations.items():
            title = Text(f"\n{_shown(status)}", style=f"bold {_COLORS[status]}")
            console.print(title.append(f"  {reason}", style="not bold"))
            for location in uses[:_MAX_SHOWN]:
                console.print(Text(f"  {location}", style="dim"), overflow="fold")
            if len(uses) > _MAX_SHOWN:
                console.print(Text(f"  and {len(uses) - _MAX_SHOWN} more", style="dim"))
    sound = sum(int(coverage.is_sound) for _, coverage in found)
    summary = Text(f"\n{sound} of {len(found)} fully enforced by {engine}; keywords:")
    for status in STATUSES:
        summary.append(f" {sum(_count(coverage, status) for _, coverage in found)} {_shown(status)}", _COLORS[status])
    console.print(summary)


def _count(coverage: Coverage, status: Status) -> int:
    """The number of keywords that have a status, for whatever reasons."""
    return len({use.pointer for use in coverage.by_status()[status]})


def _shown(status: Status) -> str:
    return status.replace("_", " ")
