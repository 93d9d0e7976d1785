"""The words of docs/contributing/style.md: old dialect stays out of docstrings, errors and docs."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path for folder in ("constrained_k2", "benchmarks", "scripts", "examples") for path in (ROOT / folder).rglob("*.py")
)
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "grammars").glob("*.md")])
TABLES_OF_OLD_NAMES = {"CHANGELOG.md", "style.md"}

DIALECT = {
    "mend": r"\bmend(s|ed|ing)?\b",
    "stand-in": r"\bstand-?ins?\b",
    "lowering": r"\blower(ing|ed) (a|the|each) request",
    "nobody": r"\bnobody\b",
    "thereof and the like": r"\b(where|there|here)(of|upon|from|with|by)\b",
    "at hand": r"\bat hand\b",
    "said of, told of": r"\b(said|told|asked) of\b",
    "is no X": r"(?<!there )\b(is|are) no (?!longer\b|more\b|such\b|less\b|other\b|further\b)[a-z]+\b",
    "of which, of whom": r"\bof (which|whom|whose)\b",
    "what for": r"\bwhat for\b",
    "lest": r"\blest\b",
    "see to it": r"\b(sees?|seen|saw) to (it|that)\b",
    "hold good": r"\b(holds?|held) good\b",
}
FIRST_LINES = DIALECT | {
    "a clause that begins with What": r"^What\b(?!.*\?$)",
    "a fragment that begins with Of": r"^Of\b",
    "a clause that begins with How, Where, Who": r"^(How|Where|Who)\b(?!.*\?$)",
}


def first_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The first line of each docstring, with its number."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text.splitlines()[0]


def errors(path: Path) -> Iterator[tuple[int, str]]:
    """The literal text inside each ``raise``, with its line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Raise) and node.exc is not None:
            for part in ast.walk(node.exc):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.lineno, part.value


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """The lines of a page outside code blocks, without code spans."""
    is_code = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code and not line.startswith("    "):
            yield number, re.sub(r"`[^`]*`", "", line)


def found(lines: Iterator[tuple[int, str]], words: dict[str, str]) -> list[str]:
    return [
        f"line {number}: {name}: {line.strip()}"
        for number, line in lines
        for name, pattern in words.items()
        if re.search(pattern, line, re.IGNORECASE if name in DIALECT else 0)
    ]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_docstrings_and_errors_are_plain(path: Path) -> None:
    assert not found(first_lines(path), FIRST_LINES)
    assert not found(errors(path), DIALECT)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_are_plain(page: Path) -> None:
    if page.name not in TABLES_OF_OLD_NAMES:
        assert not found(prose(page), DIALECT)


def test_dialect_is_found() -> None:
    bad = ["What of a request is kept", "The prompt is mended.", "tools[3]: is no tool", "Nobody asks"]
    assert all(found(iter([(1, line)]), FIRST_LINES) for line in bad)
    assert not found(iter([(1, "What is wrong?"), (2, "There is no longer a limit.")]), FIRST_LINES)
