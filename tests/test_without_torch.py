"""The package and these verbs of its command line work in an environment without torch."""

import json
import os
import subprocess
import sysconfig
import tomllib
import venv
from collections.abc import Sequence
from pathlib import Path

import pytest

import constrained_k2
from constrained_k2.testing import write_tokenizer
from tests.evaluation.fake_endpoint import FakeEndpoint
from tests.evaluation.fake_server import Fake

ROOT = Path(constrained_k2.__file__).parents[1]
WITH_TORCH = ("torch", "functorch", "triton", "vllm", "xgrammar", "nvidia", "__editable__")
REQUEST = {
    "messages": [{"role": "user", "content": "Weather in Oslo?"}],
    "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}],
}  # fmt: skip
COMPLETION = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
    '{"city": "Oslo"}<|tool_call_end|><|tool_calls_section_end|>'
)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a virtual environment with the packages of this one, except torch and what needs it."""
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory, symlinks=True)
    (site_packages,) = directory.glob("lib/python*/site-packages")
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if not package.name.startswith(WITH_TORCH):
            (site_packages / package.name).symlink_to(package)
    (site_packages / "repository.pth").write_text(str(ROOT))
    return directory / "bin" / "python"


def run(python: Path, *arguments: str | Path, stdin: str = "", good: Sequence[int] = (0,)) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, *arguments], input=stdin, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode in good, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_torch_is_no_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra in ([], ["demo"]):
        requirements = [
            *project["dependencies"],
            *(one for name in extra for one in project["optional-dependencies"][name]),
        ]
        assert not [one for one in requirements if one.startswith(WITH_TORCH)]


def test_all_public_names_but_the_kernel(python: Path) -> None:
    code = """
import constrained_k2
for name in constrained_k2.__all__:
    if name != "apply_token_bitmask":
        getattr(constrained_k2, name)
constrained_k2.apply_token_bitmask
"""
    said = run(python, "-c", code, good=(1,))
    assert said.endswith("ModuleNotFoundError: torch is not installed: pip install 'constrained-k2[vllm]'\n")


@pytest.mark.slow
def test_verbs(python: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    write_tokenizer(tmp_path / "tokenizer")
    request, calls = json.dumps(REQUEST), json.dumps(REQUEST["tools"])
    verb = ("-m", "constrained_k2")
    assert "get_weather" in run(python, *verb, "coverage", stdin=calls)
    assert "get_weather" in run(python, *verb, "grammar", stdin=request)
    assert "Oslo" in run(python, *verb, "parse", stdin=COMPLETION)
    assert "Weather in Oslo?" in run(python, *verb, "render", "--tokenizer", tmp_path / "tokenizer", stdin=request)


def test_doctor(python: Path) -> None:
    with Fake() as fake:
        assert "version" in run(python, "-m", "constrained_k2", "doctor", fake.url, "--quick", good=(0, 1))


@pytest.mark.slow
def test_ab(python: Path, tmp_path: Path) -> None:
    samples = tmp_path / "samples.jsonl"
    samples.write_text(json.dumps(REQUEST) + "\n")
    with FakeEndpoint() as fake:
        options = ("--samples", samples, "--output", tmp_path / "run", "--json")
        said = run(python, "-m", "constrained_k2", "ab", fake.url, *options, good=(0, 1))
    assert "unconstrained" in said and (tmp_path / "run").is_dir()


@pytest.mark.slow
def test_what_needs_torch_says_which_extra(python: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    options = ("--serve", tmp_path, "--output", tmp_path / "run")
    said = run(python, "-m", "constrained_k2", "ab", *options, good=(2,))
    assert "pip install 'constrained-k2[vllm]'" in said


@pytest.mark.only_all
def test_a_fresh_environment_gets_no_torch(tmp_path: Path) -> None:
    venv.create(tmp_path / "environment", with_pip=True)
    python = tmp_path / "environment" / "bin" / "python"
    installed = subprocess.run(
        [python, "-m", "pip", "install", "-q", f"{ROOT}[tools]"], capture_output=True, text=True, check=False
    )
    if installed.returncode:
        pytest.skip(f"pip cannot install here: {installed.stderr.strip()[-200:]}")
    run(python, "-c", "import importlib.util; assert importlib.util.find_spec('torch') is None")
    assert "Oslo" in run(python, "-m", "constrained_k2", "parse", stdin=COMPLETION)
    assert "get_weather" in run(python, "-m", "constrained_k2", "coverage", stdin=json.dumps(REQUEST["tools"]))
    assert "get_weather" in run(python, "-m", "constrained_k2", "grammar", stdin=json.dumps(REQUEST))
