"""Through real servers of both routes: answers in a form, of requests without tools."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import pytest

from constrained_k2 import Vocabulary
from constrained_k2.evaluation.server import VllmServer
from tests.kit.answers import Seen
from tests.kit.servers import on
from tests.vllm_plugin.asking import CHAT, WEATHER, chat, claude, only_choice, post, respond, said

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


def report(server: VllmServer, number: int, *, stream: bool = False, **fields: Any) -> Seen:
    """The answer of a chat."""
    messages = [{"role": "user", "content": f"Report {number}."}]
    given = {"max_tokens": 160, "seed": number, "response_format": FORM, "return_token_ids": True} | LIMITS
    return chat(server, stream=stream, messages=messages, **given | fields)


def check(seen: Seen, vocabulary: Vocabulary) -> None:
    jsonschema.validate(json.loads(seen.content), REPORT)
    markers = vocabulary.format
    *written, last = seen.ids
    assert (last, seen.reason) == (markers.turn_end, "stop")
    thought = [token for token in written if not vocabulary.is_ordinary(token)]
    assert thought in ([], [markers.think_begin, markers.think_end])


@ROUTES
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_answer_is_valid(server: VllmServer, vocabulary: Vocabulary, temperature: float) -> None:
    """Also where the model wants nothing but a special token."""
    wanted = {"script": [vocabulary.special_tokens["[PAD]"]] * 160}

    def ask(number: int) -> Seen:
        xargs = LIMITS["vllm_xargs"] | (wanted if number % 4 == 3 else {})
        return report(server, number, stream=number % 2 == 1, temperature=temperature, vllm_xargs=xargs)

    with ThreadPoolExecutor(8) as threads:
        for answer in threads.map(ask, range(20)):
            check(answer, vocabulary)


@on("logits_processor")
@pytest.mark.parametrize("stream", [False, True])
def test_the_form_begins_behind_the_reasoning(server: VllmServer, vocabulary: Vocabulary, stream: bool) -> None:
    markers = vocabulary.format
    script = [markers.think_begin, *vocabulary.encode("Hm <|im_end|> {"), markers.think_end]
    extra = {"vllm_xargs": LIMITS["vllm_xargs"] | {"script": script}}
    seen = report(server, 1, stream=stream, **extra)
    assert seen.ids[: len(script)] == script
    check(seen, vocabulary)


@ROUTES
@pytest.mark.parametrize("stream", [False, True])
def test_responses_and_messages(server: VllmServer, stream: bool) -> None:
    form: dict[str, Any] = {"type": "json_schema", "name": "report", "schema": REPORT, "strict": True}
    response = respond(server, stream=stream, input="Report.", max_output_tokens=160, text={"format": form}, **LIMITS)
    assert response["text"]["format"]["schema"] == REPORT
    assert [item["type"] for item in response["output"]].count("message") == 1
    jsonschema.validate(json.loads(said(response)), REPORT)
    config = {"format": {"type": "json_schema", "schema": REPORT}}
    seen = claude(server, stream=stream, max_tokens=160, output_config=config, **LIMITS)
    jsonschema.validate(json.loads(seen.content), REPORT)


@ROUTES
def test_other_forms(server: VllmServer) -> None:
    for asked, expected in (
        ({"choice": ["yes", "no"]}, {"yes", "no"}),
        ({"regex": "a{3}"}, {"aaa"}),
        ({"grammar": 'start: "b" "c"'}, {"bc"}),
    ):
        seen = report(server, 1, response_format=None, structured_outputs=asked)
        assert (seen.content in expected, seen.reason) == (True, "stop")
    assert isinstance(json.loads(report(server, 1, response_format={"type": "json_object"}).content), dict)


@ROUTES
def test_a_strict_form_is_refused_where_it_cannot_be_written(server: VllmServer) -> None:
    schema = {"type": "string", "minLength": 3, "maxLength": 2}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    for path in (CHAT, f"{CHAT}/render"):
        answer = post(server, path, messages=[{"role": "user", "content": "x"}], response_format=form)
        assert answer.status_code in (400, 403), answer.text  # 403: the server has no such endpoint
    assert report(server, 2).reason == "stop"


@ROUTES
@pytest.mark.parametrize("more", [{}, {"tools": [WEATHER], "tool_choice": "none"}], ids=["alone", "beside tools"])
def test_completions_take_the_form_as_a_constraint(server: VllmServer, more: dict[str, Any]) -> None:
    xargs = LIMITS["vllm_xargs"] | {"constrained_k2": json.dumps({"response_format": FORM} | more)}
    choice = only_choice(server, "/v1/completions", prompt="Report.", max_tokens=160, temperature=1.0, vllm_xargs=xargs)
    jsonschema.validate(json.loads(choice["text"]), REPORT)
