"""Grammar drafts take values from the prompt of the engine core's request, and change no token."""

import json
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from vllm.v1.request import Request

from constrained_k2 import ToolCall, Vocabulary, render_tool_calls
from constrained_k2.vllm_plugin.engine_core.structured_output import ConstrainedOutputManager
from tests.vllm_plugin.scheduling import ScriptedEngine, admitted, config_of

VALUE = "Petrovaradin on the river Danube"
SCHEMA = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
SPEC = {"tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}], "tool_choice": "required"}


@pytest.mark.parametrize("drafts", [True, False])
def test_values_of_the_prompt_are_drafted(model: Path, vocabulary: Vocabulary, drafts: bool) -> None:
    additional = {"constrained_k2": {"route": "structured_output", "drafts": drafts}}
    calls = render_tool_calls([ToolCall("f", 0, json.dumps({"place": VALUE}))], vocabulary)
    ids, steps = [*calls, vocabulary.format.turn_end], []
    for text in (f'Find "{VALUE}", please.', "Find it, please."):
        engine = ScriptedEngine(config_of(model, additional_config=additional), asynchronous=False)
        engine.add("a", admitted(vocabulary, SPEC), ids, vocabulary.encode(text))
        engine.run()
        assert engine.outputs["a"][: len(ids)] == ids and engine.reasons == {"a": "stop"}
        steps.append(engine.steps)
        engine.manager.clear_backend()
    assert steps[0] < steps[1] - 3 if drafts else steps[0] == steps[1]


def test_a_prompt_of_embeddings_holds_no_values(model: Path, vocabulary: Vocabulary) -> None:
    manager = ConstrainedOutputManager(config_of(model))
    request = Request("a", [1, 2], admitted(vocabulary, SPEC), None)
    request.prompt_token_ids = None
    manager.grammar_init(request)
    assert request.structured_output_request._grammar.result(timeout=60).draft(4)
    manager.clear_backend()
