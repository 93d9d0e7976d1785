"""The documentation: what is generated is current, the site builds strictly, and links and commands exist."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import constrained_k2
from constrained_k2 import Vocabulary
from constrained_k2.cli import main
from constrained_k2.request.tools import DEFAULT_LIMITS
from constrained_k2.schema.budget import DEFAULT_BUDGET
from constrained_k2.vllm_plugin.shared.settings import Settings
from constrained_k2.vocabulary.bitmask import allowed_ids
from scripts.write_docs import generated

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_generated_pages_are_current() -> None:
    for page, text in generated().items():
        assert page.read_text("utf-8") == text, f"{page.name}: run python -m scripts.write_docs"


@pytest.mark.slow
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "index.html").exists()


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_outside_the_site_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", (ROOT / page).read_text("utf-8"))
    assert not [link for link in links if "://" not in link and not (ROOT / link).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_modules_that_pages_name_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    files = set(re.findall(r"\b((?:scripts|tests|examples|grammars|benchmarks)/[\w/]+\.\w+)", text))
    files |= {
        f"constrained_k2/{name}"
        for name in re.findall(r"`((?:engines|turn|schema|grammar|kernels|vllm_plugin)/[\w/.]+)`", text)
    }
    assert not [name for name in files if not (ROOT / name).exists()]
    for module in re.findall(r"python -m ((?:benchmarks|scripts|tests|constrained_k2)[\w.]*)", text):
        base = ROOT / module.replace(".", "/")
        assert base.with_suffix(".py").exists() or (base / "__main__.py").exists(), module


def test_options_that_pages_name_exist(capsys: pytest.CaptureFixture[str]) -> None:
    text = "\n".join(page.read_text("utf-8") for page in PAGES).replace("\\\n", "")
    commands = re.findall(r"(?:^|`)constrained-k2 ([a-z]+)\b([^`#\n]*)", text, re.MULTILINE)
    assert len(commands) > 10
    for verb, rest in commands:
        with pytest.raises(SystemExit, match="0"):
            main([verb, "--help"])
        known = capsys.readouterr().out
        assert not [option for option in re.findall(r"--[a-z-]+", rest) if option not in known], (verb, rest)


def test_the_version_is_the_same_everywhere() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    latest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert latest is not None
    assert constrained_k2.__version__ == declared == latest[1]


def test_the_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()
    assert len(lines) <= 100
    assert any("<|tool_calls_section_begin|>" in line for line in lines[:15]), "the wire format is on the first screen"


@pytest.mark.parametrize(
    ("page", "text", "limit"),
    [
        ("caps", "{}, references included", DEFAULT_BUDGET.depth),
        ("caps", "{} JSON objects per schema", DEFAULT_BUDGET.objects),
        ("caps", "{} per enum", DEFAULT_BUDGET.values),
        ("caps", "{} characters per name or listed string", DEFAULT_BUDGET.text_characters),
        ("caps", "| {} |", DEFAULT_LIMITS.tools),
        ("caps", "{} bytes of schemas per request", DEFAULT_LIMITS.tools_bytes),
        ("operators", "{} MiB", Settings().memory_mib),
    ],
)
def test_a_limit_is_the_codes(page: str, text: str, limit: int) -> None:
    assert text.format(f"{limit:,}") in (ROOT / "docs" / f"{page}.md").read_text("utf-8")


def test_the_loop_without_a_server_runs(small_vocabulary: Vocabulary, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "offline.md").read_text("utf-8"), re.DOTALL)
    (loop,) = [block for block in blocks if "is_terminated" in block]
    loop, replaced = re.subn(r"Vocabulary\.from_pretrained\([^)]*\)", "given", loop)
    assert replaced == 1
    schema = {"properties": {"unit": {"enum": ["C", "F"]}}, "required": ["unit"], "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "forecast", "parameters": {"type": "object"} | schema}}

    def sample(bitmask: Any) -> int:
        allowed = [int(token) for token in allowed_ids(bitmask[0])]
        return max(allowed, key=lambda token: (not small_vocabulary.is_ordinary(token), token))

    body = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    exec(loop, {"given": small_vocabulary, "body": body, "sample": sample})
    assert "forecast" in capsys.readouterr().out
