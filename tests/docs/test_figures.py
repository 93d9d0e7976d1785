"""Figures: those that pages share are those of docs/figures.toml, and the README has no other."""

import re
import tomllib
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FIGURES: dict[str, Any] = tomllib.loads((ROOT / "docs" / "figures.toml").read_text("utf-8"))
PLAIN = (  # names, versions, and how much a run was given
    r"vLLM 0\.\d+(\.\d+)?|0\.3[23](\.\d+)?'s|of 0\.32\.0|Python 3\.11|V[12] model|parallel 2|constrained_k2|K[23]\b|Apache-2\.0|HTTP 400"
    r"|every 200th|of 300\b|SmolLM2|EAGLE-3|temperature 0\.7|AVX-512|exits with 1|258 new tools|64 new tools"
)


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_the_same_on_its_pages(name: str) -> None:
    figure = FIGURES[name]
    assert ("command" in figure) != ("code" in figure)
    for page, text in figure["pages"].items():
        assert re.search(rf"(?<![\d.,]){re.escape(figure['value'])}(?![\d]|[.,]\d)", text), (page, text)
        assert text in (ROOT / page).read_text("utf-8"), f"{page} has no {text!r}"


@pytest.mark.parametrize("name", [name for name in FIGURES if "README.md" in FIGURES[name]["pages"]])
def test_the_readme_names_the_command(name: str) -> None:
    command = FIGURES[name]["command"]
    assert f"`{command}`" in (ROOT / "README.md").read_text("utf-8")
    path = ROOT / command.removeprefix("python -m ").partition(" --")[0].replace(".", "/")
    assert (
        (ROOT / command.partition(" --")[0]).exists()
        or path.with_suffix(".py").exists()
        or (path / "__main__.py").exists()
    )


@pytest.mark.parametrize("name", [name for name in FIGURES if "code" in FIGURES[name]])
def test_a_limit_is_that_of_the_code(name: str) -> None:
    module, _, attribute = FIGURES[name]["code"].partition(":")
    if module.startswith("constrained_k2.vllm_plugin"):
        pytest.importorskip("vllm", reason="vLLM is not installed")
    assert f"{attrgetter(attribute)(import_module(module)):,}" == FIGURES[name]["value"]


def test_the_readme_has_no_other_figure() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    text = re.sub(r"```.*?```|`[^`\n]*`|\]\([^)]*\)", lambda code: " " * len(code[0]), text, flags=re.DOTALL)
    known = [
        *(re.escape(figure["pages"]["README.md"]) for figure in FIGURES.values() if "README.md" in figure["pages"]),
        PLAIN,
    ]
    covered = {place for each in known for found in re.finditer(each, text) for place in range(*found.span())}
    assert not [
        text[max(place - 30, 0) : place + 9]
        for place, char in enumerate(text)
        if char.isdigit() and place not in covered
    ]
