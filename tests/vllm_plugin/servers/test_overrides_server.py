"""``constrained-k2 explain`` against real servers, on both routes."""

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from constrained_k2.cli import main
from constrained_k2.evaluation.server import VllmServer
from tests.kit.tools import tool

pytestmark = pytest.mark.server

UNITS = {"type": "object", "properties": {"units": {"enum": ["celsius", "fahrenheit"]}}, "required": ["units"]}
TOOLS = [tool("get-weather", UNITS)]


@pytest.mark.parametrize("choice", ["required", "auto"])
def test_overrides_of_a_random_model(
    server: VllmServer, choice: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model wants another token than one of the call's nearly everywhere."""
    body = {
        "messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS, "tool_choice": choice, "seed": 1,
        "parallel_tool_calls": False, "max_tokens": 200, "temperature": 0,
    }  # fmt: skip
    path = tmp_path / "request.json"
    path.write_text(json.dumps(body))
    assert main(["explain", server.url, str(path), "--tokenizer", str(server.model)]) == 0
    said = capsys.readouterr().out
    found = re.match(r"(\d+) overridden of (\d+) examined; (\d+) of (\d+) tokens forced", said)
    assert found, said
    overridden, examined, _, tokens = map(int, found.groups())
    assert examined == tokens > 10
    if choice == "required":
        assert overridden > 5
        assert re.search(r"get-weather +/units +enum ", said)
    assert "refused" not in said  # the mask here is the server's
