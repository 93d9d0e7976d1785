"""Runs commands in this process, and writes a tokenizer for them."""

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from constrained_k2.cli import main
from constrained_k2.testing import write_tokenizer


@dataclass(frozen=True)
class Said:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The output as JSON."""
        return json.loads(self.out)


Run = Callable[..., Said]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """``run("parse", "-", stdin=text)`` runs a command and returns what it said."""

    def run(*arguments: str, stdin: str = "") -> Said:
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        code = main(list(arguments))
        return Said(code, *capsys.readouterr())

    return run


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a small tokenizer of Kimi K2."""
    directory = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(directory)
    return directory
