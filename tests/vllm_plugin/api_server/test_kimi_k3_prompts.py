"""vLLM's renderer for Kimi K3, over the test model's tokenizer, gives the ids of this package's renderer.

The two are independent: the tokenizer class has its own rendering code. Where vLLM changes a request before its
tokenizer sees it, the difference is a test of its own.
"""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vllm.config import ModelConfig, VllmConfig
from vllm.renderers import renderer_from_config
from vllm.renderers.kimi_k3 import KimiK3Renderer
from vllm.renderers.params import ChatParams

from constrained_k2 import Vocabulary
from constrained_k2.prompts.xtml import XtmlRenderer, repair_history
from constrained_k2.testing import build_model
from tests.kit.budget import tries
from tests.prompts.dialogs import USER, call, calls, result
from tests.prompts.kimi_k3 import COPIED, body_of

TOOL = {"type": "function", "function": {"name": "f"}}
DYNAMIC = "sglang_dynamic_tools_key_order_is_sorted"


class Both:
    """vLLM's renderer and this package's, over one model."""

    def __init__(self, directory: Path) -> None:
        self._own = XtmlRenderer(Vocabulary.from_pretrained(directory))
        where = str(directory)
        model = ModelConfig(model=where, tokenizer=where, tokenizer_mode="kimi_k3", trust_remote_code=True)
        self.vllm = renderer_from_config(VllmConfig(model_config=model))
        assert isinstance(self.vllm, KimiK3Renderer)

    def served(self, body: dict[str, Any]) -> list[int]:
        """The ids of vLLM, given what its chat endpoint makes of a request body."""
        messages = copy.deepcopy(body["messages"])
        for message in messages:  # as the endpoint's request model renames it
            if "reasoning_content" in message:
                message["reasoning"] = message.pop("reasoning_content")
        kwargs = {"add_generation_prompt": True, **body.get("chat_template_kwargs", {})}
        if tools := body.get("tools"):
            kwargs["tools"] = tools
        if "reasoning_effort" in body:
            kwargs["reasoning_effort"] = body["reasoning_effort"]
        choice = body.get("tool_choice") if tools else None
        form = body.get("response_format")
        params = ChatParams(chat_template_kwargs=kwargs, tool_choice=choice, response_format=form)
        _, prompt = self.vllm.render_messages(messages, params)
        return list(prompt["prompt_token_ids"])

    def own(self, body: dict[str, Any]) -> list[int]:
        return list(self._own.render(body, repair=False, contract=False).ids)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    pair = Both(build_model(tmp_path_factory.mktemp("models") / "k3", arch="llama", wire_format="kimi_k3"))
    yield pair
    pair.vllm.shutdown()


OPTIONS: list[dict[str, Any]] = [
    {"reasoning_effort": "low"},
    {"reasoning_effort": "none"},
    {"chat_template_kwargs": {"enable_thinking": False}},
    {"chat_template_kwargs": {"thinking": False}},
    {"chat_template_kwargs": {"thinking_effort": "high"}, "reasoning_effort": "low"},
    {"response_format": {"type": "text"}},
    {"response_format": {"type": "json_object"}},
    {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {"type": "object", "$id": "x"}},
        }
    },
    *({"tools": [TOOL], "tool_choice": choice} for choice in ("auto", "none", "required", TOOL)),
]
GOLDENS = [body_of(golden) for golden in COPIED if golden["name"] != DYNAMIC]


@pytest.mark.parametrize("body", [*GOLDENS, *({"messages": [USER], **fields} for fields in OPTIONS)])
def test_goldens_and_options(body: dict[str, Any], both: Both) -> None:
    given = json.loads(json.dumps(body).replace("1e2", "100.0"))  # vLLM writes numbers again
    assert both.served(given) == both.own(given)


TEXT = st.lists(
    st.sampled_from(["a", "é", " ", "\n", '"', "&quot;", "<|open|>", "<|sep|>", "<|close|>", "[EOS]", "think"]),
    max_size=4,
).map("".join)
NAME = st.sampled_from(["f", 'g"&', "<|open|>h"])
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from([0.5, 1e100]) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=3,
)
ARGUMENTS = st.dictionaries(TEXT, VALUE, max_size=3)
CALL = st.builds(
    call,
    st.sampled_from([None, "", "a", "b", "f:0", "c"]),
    NAME,
    ARGUMENTS | ARGUMENTS.map(lambda value: json.dumps(value, ensure_ascii=False)) | st.sampled_from(["", "{}"]),
)
MESSAGE = st.one_of(
    st.builds(lambda role, text: {"role": role, "content": text}, st.sampled_from(["user", "system"]), TEXT),
    st.builds(lambda text, name: {"role": "user", "content": text, "name": name}, TEXT, TEXT),
    st.builds(calls, CALL),
    st.builds(
        lambda made, text, why: {"role": "assistant", "content": text, "reasoning_content": why, "tool_calls": made},
        st.lists(CALL, max_size=3),
        TEXT,
        TEXT.filter(str.strip),
    ),
    st.builds(result, st.sampled_from([None, "", "a", "b", "f:0", "x"]), TEXT),
    st.builds(result, st.sampled_from(["a", "x"]), TEXT, name=NAME),
)


@settings(max_examples=tries(100, everything=300), suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(MESSAGE, max_size=6), st.booleans())
def test_repaired_dialogs(both: Both, messages: list[dict[str, Any]], thinking: bool) -> None:
    repaired, _ = repair_history({"messages": messages, "chat_template_kwargs": {"thinking": thinking}})
    assert both.served(repaired) == both.own(repaired)


OTHER: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # request -> the request whose prompt vLLM gives instead
    "arguments that are no JSON are lost": (
        {"messages": [calls(call("a", "f", "not json"))]},
        {"messages": [calls(call("a", "f", "{}"))]},
    ),
    "values are written again": (
        {"messages": [calls(call("a", "f", '{"a": 1e2, "b": [1,2], "a": 3}'))]},
        {"messages": [calls(call("a", "f", '{"a": 3, "b": [1, 2]}'))]},
    ),
    "texts of a list are joined by a line break": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": text} for text in "ab"]}]},
        {"messages": [{"role": "user", "content": "a\nb"}]},
    ),
    "tools of system messages are lost": (
        {"messages": [{"role": "system", "content": "", "tools": [{"function": {"name": "f"}}]}]},
        {"messages": [{"role": "system", "content": ""}]},
    ),
    "calls without tools are not forbidden": (
        {"messages": [USER], "tool_choice": "none"},
        {"messages": [USER]},
    ),
}


@pytest.mark.parametrize("name", OTHER)
def test_differences(name: str, both: Both) -> None:
    given_body, served_body = OTHER[name]
    assert both.served(given_body) == both.own(served_body)
    assert both.served(given_body) != both.own(given_body)
