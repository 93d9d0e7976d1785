"""Refused requests: every row of the table of refused fields, on each endpoint; their log lines and counts."""

from typing import Any

import pytest
from prometheus_client import REGISTRY
from pydantic import ValidationError
from vllm import SamplingParams
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.exceptions import VLLMValidationError

from constrained_k2 import ToolCallSpec
from constrained_k2.errors import ConstrainedK2Error, FormatMismatch, InvalidRequest, SchemaTooCostly, UnsupportedSchema
from constrained_k2.vllm_plugin.api_server import admission
from constrained_k2.vllm_plugin.api_server.admission import Admission
from constrained_k2.vllm_plugin.api_server.middleware import check_completion
from constrained_k2.vllm_plugin.api_server.refusals import REASONS, Reason, classified, refusal, refusals_noted
from constrained_k2.vllm_plugin.api_server.repair import prepare
from constrained_k2.vllm_plugin.shared import log
from constrained_k2.vllm_plugin.shared.log import LineLimit, in_one_line
from constrained_k2.vllm_plugin.shared.server import vocabulary_of
from tests.vllm_plugin.parsers import TOOL, Composed, chat, responses

# The table of refused fields, as vLLM reads them


SPEC = ToolCallSpec.from_openai({"tools": [TOOL]}).to_json()
FLAT = {"type": "function", "name": "f", "parameters": {"type": "object"}}
ALLOWED = {"type": "allowed_tools", "mode": "auto", "tools": [FLAT]}
FIELDS: dict[str, dict[str, Any]] = {
    # The row -> what a request has of it, by endpoint where that differs.
    "use_beam_search": {"use_beam_search": True},
    "structured_outputs": {"structured_outputs": {"regex": "a"}},
    "structured_outputs.structural_tag": {"structured_outputs": {"structural_tag": '{"structures": [], "triggers": []}'}},
    "response_format.type": {"response_format": {"type": "structural_tag", "format": {"type": "any_text"}}},
    "structured_outputs.whitespace_pattern": {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}},
    "structured_outputs.disable_any_whitespace": {"structured_outputs": {"regex": "a", "disable_any_whitespace": True}},
    "structured_outputs.disable_additional_properties": {
        "structured_outputs": {"json": "{}", "disable_additional_properties": True}},
    "trace_decode_token_ids": {"trace_decode_token_ids": [1]},
    "resumable": {},
    "tool_choice": {"tools": [FLAT, {"type": "web_search"}], "tool_choice": {"type": "web_search_preview"}},
    "tool_choice.allowed_tools": {"tool_choice": ALLOWED},
    "messages[…].tools": {"messages": [{"role": "user", "content": "x", "tools": [TOOL]}]},
    "messages[…].tool_call_id": {"messages": [{"role": "tool", "content": "x"}]},
    "tools[…].format": {"tools": [{"type": "custom", "name": "f",
                                   "format": {"type": "grammar", "syntax": "lark", "definition": "start: /a/"}}]},
    "tools[…].input_schema": {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
}  # fmt: skip
REFUSED = [row for row in REASONS if row.outcome.startswith("refused")]
PAIRS = [pytest.param(row, endpoint, id=f"{endpoint} {row.field}") for row in REFUSED for endpoint in row.endpoints]


OTHER_PARSER = {"tool_choice.allowed_tools", "tools[…].format"}  # read by another tool parser


def send(endpoint: str, row: Reason, composed: Composed) -> None:
    """Pass a request through what reads it on its way to the engine; a field is a part of the body."""
    fields = FIELDS[row.field]
    match endpoint:
        case "chat":
            request = chat(**fields)
            if row.field.startswith("messages["):  # of Kimi K3
                prepare({"request": request, "messages": request.messages, "tool_dicts": None}, None, None)
            if row.field not in OTHER_PARSER:
                request = composed.adjusted(request)
            admission.check_params(request.to_sampling_params(10, {}))
        case "responses":
            asked = responses(**({"tools": [FLAT]} | fields))
            if row.field not in OTHER_PARSER:
                composed.adjusted(asked)
            admission.check_params(asked.to_sampling_params(10, {}))
        case "messages":
            tool = {"name": "f", "input_schema": {"type": "object"}}
            body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}], "tools": [tool]}
            read = AnthropicMessagesRequest.model_validate(body | fields)
            converted = AnthropicServingMessages.to_chat_completion_request(read)
            composed.adjusted(converted)
        case "completions":
            body = {"prompt": "x", "model": "m", "vllm_xargs": {"constrained_k2": SPEC}} | fields
            check_completion(body)
        case _:
            params = SamplingParams(extra_args={"constrained_k2": SPEC}, **fields)
            Admission(vocabulary_of(composed.tokenizer)).check(
                {"params": params, "resumable": row.field == "resumable"}
            )


@pytest.mark.parametrize(("row", "endpoint"), PAIRS)
def test_a_row_is_refused_on_its_endpoints(row: Reason, endpoint: str, composed: Composed) -> None:
    """By the row's own words, where the refusal is ours: other code that refuses the field would use others."""
    with pytest.raises((VLLMValidationError, ValidationError, ValueError)) as refused:
        send(endpoint, row, composed)
    if row.outcome == "refused" and not row.field.startswith(("structured_outputs.", "response_format")):
        assert str(refusal(row.field)).replace("[…]", "[0]") in str(refused.value)
    else:
        assert row.field.rpartition(".")[2] in str(refused.value)


@pytest.mark.parametrize(("row", "endpoint"), [pair for pair in PAIRS if "python" not in pair.values])
def test_without_the_field_the_request_passes(
    row: Reason, endpoint: str, composed: Composed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FIELDS, row.field, {})
    send(endpoint, row, composed)


# Log lines and counts


@pytest.mark.parametrize(
    ("error", "labels"),
    [
        (SchemaTooCostly("p", budget="depth"), ("too_costly", "depth")),
        (SchemaTooCostly("p"), ("too_costly", "other")),
        (UnsupportedSchema("p", keyword="not"), ("unsupported_schema", "not")),
        (UnsupportedSchema("p", keyword="their own"), ("unsupported_schema", "other")),
        (InvalidRequest("p", "tools[3].function.name"), ("invalid_request", "tools")),
        (InvalidRequest("p", "vllm_xargs.constrained_k2"), ("invalid_request", "vllm_xargs")),
        (InvalidRequest("p", "theirs.own"), ("invalid_request", "other")),
        (InvalidRequest("p", "..."), ("invalid_request", "other")),
        (InvalidRequest("p"), ("invalid_request", "other")),
        (FormatMismatch("p"), ("other", "other")),
    ],
)
def test_labels_are_of_fixed_sets(error: ConstrainedK2Error, labels: tuple[str, str]) -> None:
    assert classified(error) == labels


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("plain, 北京 ü", "plain, 北京 ü"),
        ("a\nb\r\x1b[31m\u2028\u202e\x00\ud800", "a\\nb\\r\\x1b[31m\\u2028\\u202e\\x00\\ud800"),
        ("x" * 10_000_000, "x" * 220 + "…"),
        ("\n" * 500, "\\n" * 110 + "…"),
    ],
)
def test_a_line_is_one_line(text: str, line: str) -> None:
    assert in_one_line(text) == line


def test_lines_come_no_faster_than_they_can_be_read() -> None:
    now = 0.0
    limit = LineLimit(1.0, 3, lambda: now)
    assert [limit.take() for _ in range(10)] == [0, 0, 0, *[None] * 7]
    now = 1.5
    assert [limit.take(), limit.take()] == [7, None]
    now = 1000.0
    assert [limit.take() for _ in range(5)] == [1, 0, 0, None, None]


@refusals_noted()
def refuse(error: Exception) -> None:
    with refusals_noted():
        raise error


def noted(caplog: pytest.LogCaptureFixture, error: Any) -> list[str]:
    with pytest.raises(type(error)):
        refuse(error)
    return [record.getMessage() for record in caplog.records]


def test_a_refusal_is_said_and_counted_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_limit", LineLimit(0, 1))
    labels = {"model_name": "", "reason": "unsupported_schema", "detail": "not"}
    before = REGISTRY.get_sample_value("constrained_k2_refused_requests_total", labels) or 0
    error = UnsupportedSchema("bad\nWARNING forged " + "x" * 1000, "tools[0]", keyword="not")
    (line,) = noted(caplog, error)
    assert line.startswith("constrained_k2: refused, unsupported_schema not: tools[0]: bad\\nWARNING forged xxx")
    assert len(line) < 300
    assert len(noted(caplog, UnsupportedSchema("again", keyword="not"))) == 1  # no further line
    assert REGISTRY.get_sample_value("constrained_k2_refused_requests_total", labels) == before + 2


def test_errors_that_are_not_ours_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    assert noted(caplog, ZeroDivisionError("not ours")) == []
