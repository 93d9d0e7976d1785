"""Prints an explained turn in a terminal: the overridden tokens, and a table of their causes."""

import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from constrained_k2.explain.view import TurnView, by_place, percent, visible

_WIDTH = 120  # characters, if standard output is not a terminal
_NUMBERS = ("overridden", "contested", "wanted with", "forbidden")
_WANTED, _WRITTEN, _FORCED = "bold red strike", "bold green", "dim"


def show(view: TurnView) -> None:
    """Print the turn with its overridden tokens, and a table of their paths and causes, to standard output."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    console.print(Text(view.summary(), style="bold"))
    console.print()
    console.print(turn_text(view))
    console.print()
    rows = by_place(view)
    if not rows:
        console.print(Text("No token was overridden or contested.", style="green"))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("tool", "place", "forbidden by", *_NUMBERS[:2], "wanted → written", *_NUMBERS[2:]):
        table.add_column(title, justify="right" if title in _NUMBERS else "left")
    for row in rows:
        cells = (row.tool, row.place, row.keywords, str(row.overridden), str(row.contested), row.change)
        table.add_row(*map(Text, map(visible, cells)), percent(row.probability), percent(row.forbidden))
    console.print(table)


def turn_text(view: TurnView) -> Text:
    """The turn as text, with overridden tokens as ``[wanted→written]`` and forced tokens dimmed."""
    wanted = {each.position: each for each in view.overrides}
    text = Text()
    for position, token in enumerate(view.tokens):
        override = wanted.get(position)
        if override is None:
            text.append(visible(token.text), style=_FORCED if token.is_forced else "")
            continue
        text.append("[", style="bold").append(visible(override.wanted), style=_WANTED).append("→", style="bold")
        text.append("" if override.written is None else visible(override.written), style=_WRITTEN)
        text.append("]", style="bold")
    return text
