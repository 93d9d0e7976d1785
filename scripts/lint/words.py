"""The words of docs/contributing/style.md: private dialect stays out of docstrings, comments, errors and docs."""

import ast
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FOLDERS = ("constrained_k2", "benchmarks", "scripts", "examples", "tests")
_TABLES_OF_OLD_NAMES = {"CHANGELOG.md", "style.md"}

Patterns = dict[str, tuple[str, str]]  # by name: a pattern, and a sentence that it finds

DIALECT: Patterns = {
    "mend": (r"\bmend(s|ed|ing)?\b", "The prompt is mended."),
    "stand-in": (r"\bstand-?ins?\b", "A stand-in for the model."),
    "lowering": (r"\blower(ing|ed) (a|the|each) request", "Lowering a request to sampling parameters."),
    "thereof and the like": (r"\b(where|there|here)(of|upon|from|with|by)\b", "A schema and the cost thereof."),
    "at hand": (r"\bat hand\b", "Fills the masks at hand."),
    "said of, told of": (r"\b(said|told|asked) of\b", "The order of what is asked of the engine."),
    "is no X": (
        r"(?<!there )\b(is|are) no (?!longer\b|more\b|such\b|less\b|worse\b|other\b|further\b)[a-z]+\b",
        "tools[3]: is no tool",
    ),
    "of which, of whom": (r"\bof (which|whom|whose)\b", "Requests of which one is cut off."),
    "what for": (r"\bwhat for\b", "What for, the caller knows."),
    "lest": (r"\blest\b", "Copied lest it change."),
    "see to it": (r"\b(sees?|seen|saw) to (it|that)\b", "The cache sees to that."),
    "hold good": (r"\b(holds?|held) good\b", "The law holds good."),
    "stand, lie for be": (r"\b(lies|lay|stands|stood) (in|beside|behind|before|there|here)\b", "The log lies here."),
    "a for per": (
        r"\b(bar|line|list|module|program|server|steps|\d s) an? (arm|call|line|row|server|tool|turn)\b",
        "One line a tool.",
    ),
    "in so many": (r"\bin so many\b", "One step in so many is examined."),
    "tell that": (r"\btells? that\b", "The error tells that there is none."),
    "each that": (r"\beach that\b", "Insert a call before each that has none."),
    # Retired: docs/contributing/architecture.md and style.md have the words that replaced them.
    "twin for representative": (r"\btwins?\b", "A state's twin caches its mask."),
    "wish for contains clause": (r"\bwish(es)?\b", "The wishes of an array."),
    "any split for any tokenization": (r"\bany split (into|of the) tokens\b", "A text in any split into tokens."),
    "finish budget for finish reserve": (r"\bfinish budget\b", "The finish budget of a request."),
    "unmeant for declined": (r"(?<!_)\bunmeant\b", "Unmeant calls are counted."),
    "form for response format": (r"\b(form of (the|an|its) answer|answer in a form)\b", "The form of its answer."),
}
_LONGEST_FIRST_LINE = 100
FIRST_LINES: Patterns = DIALECT | {
    "a clause that begins with What": (r"^What\b(?!.*\?$)", "What of a request is kept"),
    "a fragment that begins with Of": (r"^Of\b", "Of one turn; not thread-safe."),
    "a clause that begins with How, Where, Who": (r"^(How|Where|Who)\b(?!.*\?$)", "Where masks are computed."),
    "a clause that begins with Whether": (r"^Whether\b", "Whether the turn is over."),
}


def findings() -> Iterator[str]:
    """Check every source and page."""
    for path in sorted(path for folder in _FOLDERS for path in (ROOT / folder).rglob("*.py")):
        if path != Path(__file__):
            tree = ast.parse(path.read_text("utf-8"))
            texts = list(_docstrings(tree))
            yield from _found(path, ((number, lines[0]) for number, lines in texts), FIRST_LINES)
            if path.is_relative_to(ROOT / "constrained_k2") and (text := ast.get_docstring(tree)):
                first = text.splitlines()[0]
                if len(first) > _LONGEST_FIRST_LINE:
                    yield f"{path.relative_to(ROOT)}:1: {len(first)} characters in the first line: {first}"
            yield from _found(path, ((number, line) for number, lines in texts for line in lines[1:]), DIALECT)
            yield from _found(path, (*_comments(path), *_errors(tree)), DIALECT)
    pages = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "grammars").glob("*.md")])
    for page in pages:
        if page.name not in _TABLES_OF_OLD_NAMES:
            yield from _found(page, _prose(page), DIALECT)


def found(line: str, patterns: Patterns) -> list[str]:
    """The names of the patterns that a line matches."""
    return [
        name
        for name, (pattern, _) in patterns.items()
        if re.search(pattern, line, re.IGNORECASE if name in DIALECT else 0)
    ]


def _found(path: Path, lines: Iterable[tuple[int, str]], patterns: Patterns) -> Iterator[str]:
    for number, line in lines:
        for name in found(line, patterns):
            yield f"{path.relative_to(ROOT)}:{number}: {name}: {line.strip()}"


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, list[str]]]:
    """The lines of each docstring, with the line of what it documents."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text.splitlines()


def _comments(path: Path) -> Iterator[tuple[int, str]]:
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


def _errors(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The literal text inside each ``raise``, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and node.exc is not None:
            for part in ast.walk(node.exc):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.lineno, part.value


def _prose(page: Path) -> Iterator[tuple[int, str]]:
    """The lines of a page outside code blocks, without code spans."""
    is_code = False
    for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code and not line.startswith("    "):
            yield number, re.sub(r"`[^`]*`", "", line)
