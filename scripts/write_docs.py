"""Write the generated parts of docs/: keywords, settings and request fields, reasons of refusals, metrics.

.venv/bin/python -m scripts.write_docs
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from constrained_k2.compiler.coverage import schema_coverage
from constrained_k2.formats.base import WireFormat
from constrained_k2.formats.kimi_k2 import KIMI_K2
from constrained_k2.request.spec import ENGINES
from constrained_k2.schema.coverage import STATUSES, Coverage
from constrained_k2.schema.keywords import ROWS as KEYWORD_ROWS

DOCS = Path(__file__).resolve().parents[1] / "docs"

KEYWORDS = """# Keywords

How each JSON Schema keyword is enforced, by engine; [Strictness](../strictness.md) defines *narrowed* and *relaxed*.
`constrained-k2 coverage tools.json` prints the same for your tools, with `--engine xgrammar` also xgrammar's reasons.

{table}
"""


SETTINGS = """# Settings and request fields

What operators and clients can set.

## Settings of a server

Pass them with `--additional-config '{{"constrained_k2": {{…}}}}'`.
With an unknown name or a wrong value, the server does not start.

{settings}

## Fields of a request

Send them in `vllm_xargs`: `{{"vllm_xargs": {{"constrained_k2_finish_reserve": 60}}}}`. On /v1/completions
put `undeclared_keys`, `undeclared_calls`, `max_calls` and `repeated_calls` beside `tools` in the JSON of
`constrained_k2`, without the prefix `constrained_k2_`. A wrong value gets HTTP 400.

{fields}
"""


REASONS = """# What is refused or ignored, and why

Which fields of a request with tools get HTTP 400, are ignored or have a limited effect, and why. The code that
refuses fields reads this table.

A wrong value of any field gets HTTP 400 too; see [Strictness](../strictness.md) for refused schemas. *Refused by vLLM*
means that vLLM refuses the field without this package too.

{table}
"""

_ENDPOINTS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages",
              "completions": "/v1/completions", "python": "Python only"}  # fmt: skip


def generated() -> dict[Path, str]:
    """Return the text of every generated page, by its path."""
    from constrained_k2.vllm_plugin.api_server.metrics import FAMILIES
    from constrained_k2.vllm_plugin.api_server.refusals import REASONS as REASON_ROWS
    from constrained_k2.vllm_plugin.shared.settings import REQUEST_FIELDS
    from constrained_k2.vllm_plugin.shared.settings import SETTINGS as ROWS
    from constrained_k2.vllm_plugin.start.versions import VERSIONS

    families = [
        (f"`constrained_k2_{family.name}{_suffix(family.kind)}`", _code(family.labels[1:]), family.help)
        for family in FAMILIES
    ]
    metrics = _table(("metric", "labels besides `model_name`", "meaning"), families)
    fields: dict[tuple[str, ...], list[str]] = {}  # those that share all else
    for row in REASON_ROWS:
        endpoints = "all" if len(row.endpoints) == 4 else ", ".join(_ENDPOINTS[each] for each in row.endpoints)
        fields.setdefault((row.beside, row.outcome, endpoints, row.why), []).append(row.field)
    reasons = [(_code(names), *rest) for rest, names in fields.items()]
    versions = [(row.number, row.on_cpu or "not run", row.on_gpu or "not run") for row in VERSIONS]
    return {
        DOCS / "reference" / "reasons.md": REASONS.format(
            table=_table(("field", "beside", "outcome", "endpoints", "reason"), reasons)
        ),
        DOCS / "reference" / "keywords.md": KEYWORDS.format(table=keyword_table()),
        DOCS / "reference" / "settings.md": SETTINGS.format(settings=_rows(ROWS), fields=_rows(REQUEST_FIELDS)),
        **_with_table("metrics.md", "metrics", metrics),
        **_with_table("operators.md", "versions", _table(("vLLM", "on a CPU", "on a GPU"), versions)),
    }


def keyword_table(wire_format: WireFormat = KIMI_K2) -> str:
    """A Markdown table: the coverage of each keyword's examples under each engine that writes a format's arguments.

    Reasons are those of the first engine; ``coverage --engine`` prints the others'.
    """
    engines = ENGINES if wire_format.argument_encoding == "json" else ENGINES[:1]
    lines = [f"| keyword | {' | '.join(engines)} |", f"|---|{'---|' * len(engines)}"]
    for title, schema in (example for row in KEYWORD_ROWS for example in row.examples.items()):
        tool = {"type": "object", "properties": {"p": schema}, "additionalProperties": False}
        found = (schema_coverage(tool, engine, undeclared_keys="allow", wire_format=wire_format) for engine in engines)
        cells = [_cell(coverage, title, explained=not number) for number, coverage in enumerate(found)]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(coverage: Coverage, title: str, *, explained: bool) -> str:
    """The weakest status among the keywords that an example's title names, with its reasons if it is explained."""
    for status in STATUSES[:0:-1]:
        uses = coverage.by_status()[status]
        named = (use for use in uses if use.pointer.startswith("#/properties/p") and use.keyword in title)
        if reasons := dict.fromkeys(use.reason.replace("|", "\\|").replace("\n", " ") for use in named):
            shown = status if status == "narrowed" else f"**{status}**"
            return f"{shown}: {'; '.join(reasons)}" if explained else shown
    return "enforced"


def _with_table(page: str, name: str, table: str) -> dict[Path, str]:
    """A page with the table between its two comments of that name."""
    begin, end = f"<!-- generated: {name} -->", "<!-- end -->"
    before, _, rest = (DOCS / page).read_text("utf-8").partition(f"{begin}\n")
    return {DOCS / page: f"{before}{begin}\n\n{table}\n\n{end}{rest.partition(end)[2]}"}


def _suffix(kind: type) -> str:
    return "_total" if kind.__name__ == "Counter" else ""


def _rows(rows: Iterable[Any]) -> str:
    cells = [(f"`{row.name}`", row.expected, _json(row.default), row.meaning) for row in rows]
    return _table(("name", "value", "default", "meaning"), cells)


def _json(value: Any) -> str:
    return value if isinstance(value, str) and " " in value else f"`{json.dumps(value)}`"


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def main() -> None:
    """Write the pages that are out of date."""
    for path, text in generated().items():
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            print(f"written: {path.relative_to(DOCS.parent)}")


if __name__ == "__main__":
    main()
