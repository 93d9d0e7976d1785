"""Instructor, in the modes that its providers have, on chat completions, the Responses API and messages."""

from collections.abc import Iterable
from typing import Any, Literal

import anthropic
import instructor
import pydantic
from instructor import Mode, Partial
from instructor.core import InstructorRetryException

from tests.clients.scripts.common import KEY, MODEL, QUESTION, TIMEOUT, LooseWeather, Weather
from tests.clients.scripts.openai_client import async_client, client

_BODY: Any = {"model": MODEL, "messages": QUESTION, "max_tokens": 600}


def _client(url: str, mode: Mode) -> Any:
    return instructor.from_openai(client(url), mode=mode)


def _create(url: str, mode: Mode, response_model: Any = Weather, **fields: Any) -> Any:
    return _client(url, mode).create(response_model=response_model, max_retries=0, **_BODY, **fields)


def tools_and_json_schema(url: str) -> None:
    for mode in (Mode.TOOLS, Mode.TOOLS_STRICT, Mode.JSON_SCHEMA):
        assert isinstance(_create(url, mode), Weather), mode


def any_json(url: str) -> None:
    """The model may write any JSON object: the client's validation is the only error that may come of it."""
    for mode in (Mode.JSON, Mode.MD_JSON):
        try:
            _create(url, mode)
        except InstructorRetryException as error:
            assert "validation error" in str(error), error


def parallel_tools(url: str) -> None:
    try:
        found = list(_create(url, Mode.PARALLEL_TOOLS, Iterable[Weather]))
    except InstructorRetryException as error:
        # Instructor (1.17) sets the tool choice to auto, whatever is asked for, and raises if the model writes a text.
        assert "No tool calls in response" in str(error), error
    else:
        assert all(isinstance(report, Weather) for report in found)


def list_of_reports(url: str) -> None:
    found = _create(url, Mode.TOOLS, list[Weather])
    assert all(isinstance(report, Weather) for report in found)


def plain_types(url: str) -> None:
    assert isinstance(_create(url, Mode.TOOLS, int), int)
    assert isinstance(_create(url, Mode.TOOLS, bool), bool)
    assert _create(url, Mode.TOOLS, Literal["a", "b"]) in {"a", "b"}


def partial_stream(url: str) -> None:
    """A partial model requires nothing, and so does the schema that is sent for it."""
    *_, last = _client(url, Mode.TOOLS).create_partial(response_model=LooseWeather, **_BODY)
    assert LooseWeather.model_validate(last.model_dump())
    *_, last = _create(url, Mode.TOOLS, Partial[LooseWeather], stream=True)
    assert LooseWeather.model_validate(last.model_dump())


def iterable_stream(url: str) -> None:
    try:
        found = list(_client(url, Mode.TOOLS).create_iterable(response_model=Weather, **_BODY))
    except pydantic.ValidationError as error:
        # Instructor (1.17) takes any object of the stream for a report: {} where the untrained model writes another key.
        assert error.errors()[0]["type"] == "missing", error
    else:
        assert all(isinstance(report, Weather) for report in found)


def with_the_completion(url: str) -> None:
    report, completion = _client(url, Mode.TOOLS).create_with_completion(response_model=Weather, **_BODY)
    assert isinstance(report, Weather)
    assert completion.choices[0].message.tool_calls


def responses_tools(url: str) -> None:
    opened = _client(url, Mode.RESPONSES_TOOLS)
    assert isinstance(opened.create(response_model=Weather, model=MODEL, messages=QUESTION, max_retries=0), Weather)


async def asynchronous(url: str) -> None:
    opened: Any = instructor.from_openai(async_client(url), mode=Mode.TOOLS)
    assert isinstance(await opened.create(response_model=Weather, **_BODY), Weather)


def anthropic_tools(url: str) -> None:
    opened = anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0, timeout=TIMEOUT)
    made: Any = instructor.from_anthropic(opened, mode=Mode.ANTHROPIC_TOOLS)
    assert isinstance(made.create(response_model=Weather, **_BODY), Weather)
