"""The report as one HTML page that needs nothing else: no server, no fonts, no scripts from elsewhere."""

import base64
import hashlib
from collections.abc import Iterator
from importlib.resources import files

from constrained_k2.evaluation.ab.figures import FIGURES, totals, value
from constrained_k2.evaluation.ab.report import plots
from constrained_k2.evaluation.ab.report.examples import examples
from constrained_k2.evaluation.ab.report.tables import Table, all_tables, percent
from constrained_k2.evaluation.ab.report.text import as_html
from constrained_k2.evaluation.ab.results import Results

_TILES = ("schema_accuracy", "valid", "tool_call_f1", "right", "argument_match", "optional_recall")
_PLOTS = {"Figures": plots.accuracy, "What is wrong": plots.failures, "Times": plots.latencies}


def to_html(results: Results) -> str:
    """The whole page.

    Nothing of a model, a server or a sample gets into it unescaped; and should that ever fail, the page's policy lets
    no script run but its own (by its digest), and loads nothing.
    """
    return "\n".join(_lines(results)) + "\n"


def _lines(results: Results) -> Iterator[str]:
    style, script = (_resource(name) for name in ("page.css", "page.js"))
    policy = f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; base-uri 'none'"
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>Constrained against unconstrained</title><style>{style}</style></head><body>"
    yield from _head(results)
    yield plots.legend(list(results.arms))
    for table in all_tables(results):
        yield f"<section><h2>{as_html(table.title)}</h2>"
        if table.title in _PLOTS:
            yield _PLOTS[table.title](results)
        yield from _table(table)
        yield "</section>"
    yield from _examples(results)
    yield f"<script>{script}</script></body></html>"


def _head(results: Results) -> Iterator[str]:
    run = results.directory
    yield "<h1>Constrained against unconstrained</h1>"
    temperature = "of each sample" if run.sampling.temperature is None else f"{run.sampling.temperature:g}"
    facts = f"{run.source}: {run.samples} samples; temperature {temperature}, seed {run.sampling.seed}."
    if run.bad_lines[0]:
        facts += f" {run.bad_lines[0]} malformed lines were left out, the first: {run.bad_lines[1][0]}"
    yield f'<p class="note">{as_html(facts)}</p>'
    if results.findings:
        items = "".join(f"<li>{as_html(finding)}</li>" for finding in results.findings)
        yield f'<div class="verdict bad"><b>Look into</b><ul>{items}</ul></div>'
    else:
        yield '<div class="verdict"><b>Nothing wrong was found.</b></div>'
    counts = {arm: totals(results.rows(arm)) for arm in results.arms}
    yield '<div class="tiles">'
    for figure in FIGURES:
        if figure.name in _TILES and any(value(figure, found)[1] for found in counts.values()):
            shares = (
                f"<div><span>{as_html(arm)}</span><b>{percent(value(figure, found)[2])}</b></div>"
                for arm, found in counts.items()
            )
            yield f'<div class="tile"><h3>{as_html(figure.title.strip())}</h3>{"".join(shares)}</div>'
    yield "</div>"


def _table(table: Table) -> Iterator[str]:
    if table.is_long:
        yield "<details><summary>Show the table</summary>"
    if table.note:
        yield f'<p class="note">{as_html(table.note)}</p>'
    head = "".join(f'<th scope="col">{as_html(cell)}</th>' for cell in table.header)
    yield f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>'
    for row in table.rows:
        yield f"<tr>{''.join(_cell(cell) for cell in row)}</tr>"
    yield f"</tbody></table></div>{'</details>' if table.is_long else ''}"


def _cell(cell: str) -> str:
    kind = "worse" if cell.endswith(" worse") else "better" if cell.endswith(" better") else ""
    kind = "indented" if cell.startswith("  ") else kind
    return f'<td class="{kind}">{as_html(cell.strip())}</td>' if kind else f"<td>{as_html(cell)}</td>"


def _examples(results: Results) -> Iterator[str]:
    kinds = sorted({kind for result in results.arms.values() for kind in result.examples})
    if not kinds:
        return
    yield "<section><h2>Answers that are not right</h2>"
    yield '<p class="note">Some of each kind and arm; all are in the run\'s directory, under records.</p>'
    yield '<div class="filters">'
    for name, options in (("arm", list(results.arms)), ("kind", kinds)):
        choices = "".join(f'<option value="{as_html(option)}">{as_html(option)}</option>' for option in options)
        yield f'<label>{name} <select id="{name}"><option value="">all</option>{choices}</select></label>'
    yield '<label>with the words <input id="words" type="search"></label>'
    yield '<span id="count" class="note" role="status"></span></div>'
    yield from examples(results)
    yield "</section>"


def _resource(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
