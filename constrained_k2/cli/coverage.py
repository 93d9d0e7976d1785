"""``constrained-k2 coverage``: what becomes of each keyword of a list of tools."""

import argparse
import json
from collections.abc import Iterator
from typing import Any

from constrained_k2.cli.reading import named_schemas, read_json
from constrained_k2.coverage import schema_coverage
from constrained_k2.errors import InvalidRequest
from constrained_k2.schema.coverage import STATUSES, Coverage, Status
from constrained_k2.tools import ENGINES, EngineName

_PLACES = 5
_COLORS: dict[Status, str] = {"enforced": "green", "narrowed": "cyan", "relaxed": "yellow", "refused": "red"}


def add_parser(verbs: Any) -> None:
    """Add this verb."""
    parser = verbs.add_parser(
        "coverage",
        help="what becomes of each keyword of your tools' schemas",
        description="For every tool: how many keywords are enforced exactly, and each one that is narrowed (less is "
        "written than it allows; still valid), relaxed (more may be written) or refused (the request would get a 400). "
        "Exit code 1 if anything is relaxed or refused.",
        epilog="example: constrained-k2 coverage tools.json    (a list of tools, a request body with tools, "
        "or one JSON Schema; '-' reads standard input)",
    )
    parser.add_argument("tools", nargs="?", default="-", help="a JSON file, or - for standard input")
    parser.add_argument("--engine", choices=ENGINES, default="llguidance", help="(default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="every keyword with its JSON pointer, as JSON")
    parser.add_argument(
        "--keywords", action="store_true", help="instead: a Markdown table of all keywords, for all engines"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Show the coverage; 1 if something is relaxed or refused."""
    if options.keywords:
        print(keyword_table())
        return 0
    found = [(name, schema_coverage(schema, options.engine)) for name, schema in _schemas(read_json(options.tools))]
    if options.json:
        print(json.dumps([{"tool": name} | coverage.to_json() for name, coverage in found], indent=2))
    else:
        _show(found, options.engine)
    return int(not all(coverage.is_sound for _, coverage in found))


def _schemas(document: Any) -> Iterator[tuple[str, Any]]:
    """The tools' names and schemas in a list of tools, a request body, MCP's ``inputSchema`` form, or a bare schema."""
    if isinstance(document, dict) and isinstance(document.get("tools"), list):
        document = document["tools"]
    if isinstance(document, dict):
        yield "schema", document
        return
    if not isinstance(document, list):
        raise InvalidRequest("is neither a list of tools, nor a request body, nor a schema", "tools")
    for name, schema in named_schemas(document):
        yield name, schema if schema not in (None, {}) else {"type": "object"}


def _show(found: list[tuple[str, Coverage]], engine: EngineName) -> None:
    """A table of counts, then every reason once with its places."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    table = Table("tool", box=None, header_style="bold", pad_edge=False)
    for status in STATUSES:
        table.add_column(status, justify="right")
    for name, coverage in found:
        counts = [
            Text(str(len(uses)) if uses else "·", style=_COLORS[status] if uses else "dim")
            for status, uses in coverage.by_status().items()
        ]
        table.add_row(Text(name), *counts)
    console.print(table)
    for status in STATUSES[:0:-1]:
        places: dict[str, list[str]] = {}
        for name, coverage in found:
            for use in coverage.by_status()[status]:
                places.setdefault(use.reason, []).append(f"{name} {use.pointer}")
        for reason, where in places.items():
            console.print(Text(f"\n{status}", style=f"bold {_COLORS[status]}").append(f"  {reason}", style="not bold"))
            for place in where[:_PLACES]:
                console.print(Text(f"  {place}", style="dim"), overflow="fold")
            if len(where) > _PLACES:
                console.print(Text(f"  and {len(where) - _PLACES} more", style="dim"))
    sound = sum(int(coverage.is_sound) for _, coverage in found)
    summary = Text(f"\n{sound} of {len(found)} kept whole by {engine}; keywords:")
    for status in STATUSES:
        summary.append(f" {sum(len(coverage.by_status()[status]) for _, coverage in found)} {status}", _COLORS[status])
    console.print(summary)


def keyword_table() -> str:
    """The README's table: each keyword's example, as the engines' coverage has it."""
    from constrained_k2.schema.keyword_table import EXAMPLES

    lines = [f"| keyword | {' | '.join(ENGINES)} |", f"|---|{'---|' * len(ENGINES)}"]
    for name, schema in EXAMPLES:
        tool = {"type": "object", "properties": {"p": schema}, "additionalProperties": False}
        cells = [_cell(schema_coverage(tool, engine), name) for engine in ENGINES]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(coverage: Coverage, name: str) -> str:
    """The worst that becomes of the keywords that an example shows, and why."""
    for status in STATUSES[:0:-1]:
        uses = [
            use
            for use in coverage.by_status()[status]
            if use.pointer.startswith("#/properties/p") and use.keyword in name
        ]
        if uses:
            reason = uses[0].reason.replace("|", "\\|").replace("\n", " ")
            return f"**{status}**: {reason}" if status != "narrowed" else f"{status}: {reason}"
    return "enforced"
