"""The page that follows one request names files that the request runs, in the order in which it first runs them."""

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

import constrained_k2
from constrained_k2 import Vocabulary
from constrained_k2.threads import compile_pool
from constrained_k2.turn.intent import Intent
from constrained_k2.vllm_plugin.api_server.admission import check_params
from constrained_k2.vllm_plugin.shared.constraint import tag
from constrained_k2.vllm_plugin.shared.declining import Declining
from constrained_k2.vllm_plugin.shared.row_plan import NamedRow
from tests.kit.tools import tool
from tests.vllm_plugin.parsers import Composed, chat
from tests.vllm_plugin.scheduling import ScriptedEngine, config_of, turn_of

PACKAGE = Path(constrained_k2.__file__).parent
PAGE = PACKAGE.parent / "docs" / "contributing" / "architecture.md"
MOST = 24
MOVE = tool("move", {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]})


@contextmanager
def traced() -> Iterator[list[str]]:
    """The package's files whose functions run, in the order of their first one."""
    found: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(str(PACKAGE)) and frame.f_code.co_name != "<module>":
            name = str(Path(path).relative_to(PACKAGE))
            found.extend([] if name in found else [name])

    before = sys.getprofile()
    sys.setprofile(note)
    threading.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(before)
        threading.setprofile(before)


def followed() -> list[list[str]]:
    """The page's files, by its parts."""
    text = PAGE.read_text("utf-8").partition("## One request")[2].partition("\n## ")[0]
    return [re.findall(r"^\d+\. `([\w/.]+)`", part, re.MULTILINE) for part in text.split("\n**")[1:]]


@pytest.mark.parametrize("composed", ["kimi_k2"], indirect=True)
def test_the_page_follows_a_request(
    model: Path, vocabulary: Vocabulary, composed: Composed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_pool, "_pool", compile_pool._Pool())  # older threads are not traced
    script = turn_of(vocabulary, ("move", '{"to": "up"}'), text="So:")
    engine = ScriptedEngine(config_of(model, speculative_config=None), asynchronous=False)
    with traced() as before_the_model:
        request = chat(tools=[MOVE])
        request = composed.make(request).adjust_request(request)
        params = request.to_sampling_params(1000, {})
        check_params(params, first=True)
    params.update_from_generation_config({"eos_token_id": list(vocabulary.format.stop_ids)}, script[-1])
    tag(params, [])
    with traced() as in_the_engine_core:
        request_in_core = engine.add("a", params, script)
        request_in_core.structured_output_request._grammar.result(timeout=60)  # in a thread, before the first step
        engine.run()
    assert engine.reasons == {"a": "stop"}
    intent = Intent(np.array([script[0]], dtype=np.int32), vocabulary.format.section_end, 0.35)
    logits = torch.zeros(1, vocabulary.size)
    with traced() as in_the_worker, Declining().around(logits, [0], [NamedRow(None, intent)]):
        pass
    with traced() as behind_the_model:
        _, content, calls = composed.make(request).parse(
            vocabulary.decode(script), request, enable_auto_tools=True, model_output_token_ids=script
        )
    assert (content, calls[0].id) == ("So:", "functions.move:0")
    ran = (before_the_model, in_the_engine_core, in_the_worker, behind_the_model)
    for part, files in zip(followed(), ran, strict=True):
        assert part == [file for file in files if file in part], files
    named, text = [file for part in followed() for file in part], PAGE.read_text("utf-8")
    assert len(named) <= MOST
    assert not [file for file in named if text.count(f"`{file}`") > 1]
