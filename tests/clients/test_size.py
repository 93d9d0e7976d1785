"""The battery's size: a table or a module that is lost by mistake fails here, without a server."""

from pathlib import Path

from tests.clients.endpoints import PATHS, body
from tests.clients.table import rows
from tests.clients.test_scripts import MODULES

_ROOT = Path(__file__).parents[2]


def test_every_row_of_the_table_has_a_body() -> None:
    table = rows()
    assert len({row.name for row in table}) == len(table) >= 300
    for endpoint in PATHS:
        bodies = [body(endpoint, row, stream=True, max_tokens=9) for row in table if endpoint in row.only]
        assert len(bodies) >= 280
        assert all(made["stream"] for made in bodies)


def test_there_are_scripts_of_every_library() -> None:
    assert len(MODULES) == 8
    assert sum(map(len, MODULES.values())) >= 140


def test_the_pages_count_the_scripts() -> None:
    page = (_ROOT / "docs" / "clients.md").read_text("utf-8")
    counts = [int(line.rsplit("|", 2)[1]) for line in page.splitlines() if line.startswith("| `")]
    assert sum(counts) == sum(map(len, MODULES.values()))
