"""Through real servers of both routes: answers in a form, of requests without tools."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import jsonschema
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from constrained_k2 import Vocabulary
from constrained_k2.evaluation.server import VllmServer
from tests.kit.servers import on

pytestmark = pytest.mark.server

REPORT = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer", "minimum": 1, "maximum": 99},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 9}, "maxItems": 3},
    },
    "required": ["text", "count"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "report", "schema": REPORT, "strict": True}}
LIMITS: dict[str, Any] = {"temperature": 1.0, "vllm_xargs": {"constrained_k2_finish_reserve": 80}}
ROUTES = on("structured_output", "logits_processor")  # the second one has masks in the workers, and a reasoning parser


def post(server: VllmServer, path: str, **body: Any) -> Any:
    answer = httpx.post(f"{server.url}{path}", json={"model": "kimi-k2"} | body, timeout=120)
    assert answer.is_success, answer.text
    return answer


def answer_of(server: VllmServer, number: int, *, stream: bool = False, **fields: Any) -> tuple[str, list[int], str]:
    """The content of a chat, its tokens, and why it ended."""
    body = {"messages": [{"role": "user", "content": f"Report {number}."}], "max_tokens": 160, "seed": number,
            "response_format": FORM, "return_token_ids": True, "stream": stream} | LIMITS | fields  # fmt: skip
    answer = post(server, "/v1/chat/completions", **body)
    if not stream:
        choice = answer.json()["choices"][0]
        return choice["message"]["content"], choice["token_ids"], choice["finish_reason"]
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    choices = [choice for line in lines for choice in json.loads(line)["choices"]]
    content = "".join(choice["delta"].get("content") or "" for choice in choices)
    return (
        content,
        [token for choice in choices for token in choice.get("token_ids") or ()],
        choices[-1]["finish_reason"],
    )


def check(answer: tuple[str, list[int], str], vocabulary: Vocabulary) -> None:
    content, token_ids, reason = answer
    jsonschema.validate(json.loads(content), REPORT)
    markers = vocabulary.format
    *written, last = token_ids
    assert (last, reason) == (markers.turn_end, "stop")
    thought = [token for token in written if not vocabulary.is_ordinary(token)]
    assert thought in ([], [markers.think_begin, markers.think_end])


@ROUTES
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_answer_is_valid(server: VllmServer, vocabulary: Vocabulary, temperature: float) -> None:
    """Also where the model wants nothing but a special token."""
    wanted = {"script": [vocabulary.special_tokens["[PAD]"]] * 160}

    def ask(number: int) -> tuple[str, list[int], str]:
        xargs = LIMITS["vllm_xargs"] | (wanted if number % 4 == 3 else {})
        return answer_of(server, number, stream=number % 2 == 1, temperature=temperature, vllm_xargs=xargs)

    with ThreadPoolExecutor(8) as threads:
        for answer in threads.map(ask, range(20)):
            check(answer, vocabulary)


@on("logits_processor")
@pytest.mark.parametrize("stream", [False, True])
def test_the_form_begins_behind_the_reasoning(server: VllmServer, vocabulary: Vocabulary, stream: bool) -> None:
    markers = vocabulary.format
    script = [markers.think_begin, *vocabulary.encode("Hm <|im_end|> {"), markers.think_end]
    extra = {"vllm_xargs": LIMITS["vllm_xargs"] | {"script": script}}
    content, token_ids, reason = answer_of(server, 1, stream=stream, **extra)
    assert token_ids[: len(script)] == script
    check((content, token_ids, reason), vocabulary)


@ROUTES
@pytest.mark.parametrize("stream", [False, True])
def test_responses(server: VllmServer, stream: bool) -> None:
    form = {"type": "json_schema", "name": "report", "schema": REPORT, "strict": True}
    body = {"input": "Report.", "max_output_tokens": 160, "text": {"format": form}, "stream": stream} | LIMITS
    answer = post(server, "/v1/responses", **body)
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    response = json.loads(lines[-1])["response"] if stream else answer.json()
    assert response["text"]["format"]["schema"] == REPORT
    (message,) = [item for item in response["output"] if item["type"] == "message"]
    jsonschema.validate(json.loads("".join(part["text"] for part in message["content"])), REPORT)


@ROUTES
@pytest.mark.parametrize("stream", [False, True])
def test_messages(server: VllmServer, stream: bool) -> None:
    body = {"messages": [{"role": "user", "content": "Report."}], "max_tokens": 160, "stream": stream,
            "output_config": {"format": {"type": "json_schema", "schema": REPORT}}} | LIMITS  # fmt: skip
    answer = post(server, "/v1/messages", **body)
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    parts = [json.loads(line).get("delta", {}) for line in lines] if stream else answer.json()["content"]
    jsonschema.validate(json.loads("".join(part.get("text", "") for part in parts)), REPORT)


@ROUTES
def test_other_forms(server: VllmServer) -> None:
    for asked, expected in (
        ({"choice": ["yes", "no"]}, {"yes", "no"}),
        ({"regex": "a{3}"}, {"aaa"}),
        ({"grammar": 'start: "b" "c"'}, {"bc"}),
    ):
        content, _, reason = answer_of(server, 1, response_format=None, structured_outputs=asked)
        assert (content in expected, reason) == (True, "stop")
    content, *_ = answer_of(server, 1, response_format={"type": "json_object"})
    assert isinstance(json.loads(content), dict)


@ROUTES
def test_a_strict_form_is_refused_where_it_cannot_be_written(server: VllmServer) -> None:
    schema = {"type": "string", "minLength": 3, "maxLength": 2}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    body = {"model": "kimi-k2", "messages": [{"role": "user", "content": "x"}], "response_format": form}
    for path in ("/v1/chat/completions", "/v1/chat/completions/render"):
        answer = httpx.post(f"{server.url}{path}", json=body, timeout=120)
        assert answer.status_code in (400, 403), answer.text  # 403: the server has no such endpoint
    assert answer_of(server, 2)[2] == "stop"


@ROUTES
def test_completions_take_the_form_as_a_constraint(server: VllmServer) -> None:
    xargs = LIMITS["vllm_xargs"] | {"constrained_k2": json.dumps({"response_format": FORM})}
    body = {"prompt": "Report.", "max_tokens": 160, "temperature": 1.0, "vllm_xargs": xargs}
    jsonschema.validate(json.loads(post(server, "/v1/completions", **body).json()["choices"][0]["text"]), REPORT)
