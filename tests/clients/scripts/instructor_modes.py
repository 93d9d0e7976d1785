"""Instructor, in the modes that its providers have, on chat completions, the Responses API and messages."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Literal

import anthropic
import instructor
import pydantic
from instructor import Mode, Partial
from instructor.core import InstructorRetryException

from tests.clients.scripts.apis import async_client, client
from tests.clients.scripts.common import KEY, MODEL, QUESTION, TIMEOUT, LooseWeather, Weather

_BODY: Any = {"model": MODEL, "messages": QUESTION, "max_tokens": 600}


def _opened(url: str, mode: Mode = Mode.TOOLS) -> Any:
    return instructor.from_openai(client(url), mode=mode)


def _creates(url: str) -> Iterator[Any]:
    """The functions of all modes whose answers have the form of the response model."""
    for mode in (Mode.TOOLS, Mode.TOOLS_STRICT, Mode.JSON_SCHEMA):
        yield partial(_opened(url, mode).create, **_BODY)
    yield partial(_opened(url, Mode.RESPONSES_TOOLS).create, model=MODEL, messages=QUESTION)
    messages: Any = anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0, timeout=TIMEOUT)
    yield partial(instructor.from_anthropic(messages, mode=Mode.ANTHROPIC_TOOLS).create, **_BODY)


EACH = {"create": _creates}


def report(create: Any) -> None:
    assert isinstance(create(response_model=Weather, max_retries=0), Weather)


async def asynchronous(url: str) -> None:
    opened: Any = instructor.from_openai(async_client(url), mode=Mode.TOOLS)
    assert isinstance(await opened.create(response_model=Weather, **_BODY), Weather)


def any_json(url: str) -> None:
    """The model may write any JSON object: the client's validation is the only error that may come of it."""
    for mode in (Mode.JSON, Mode.MD_JSON):
        try:
            _opened(url, mode).create(response_model=Weather, max_retries=0, **_BODY)
        except InstructorRetryException as error:
            assert "validation error" in str(error), error


def parallel_tools(url: str) -> None:
    try:
        found = list(_opened(url, Mode.PARALLEL_TOOLS).create(response_model=Iterable[Weather], max_retries=0, **_BODY))
    except InstructorRetryException as error:
        # Instructor (1.17) sets the tool choice to auto, whatever is asked for, and raises if the model writes a text.
        assert "No tool calls in response" in str(error), error
    else:
        assert all(isinstance(report, Weather) for report in found)


def other_types(url: str) -> None:
    create = partial(_opened(url).create, max_retries=0, **_BODY)
    assert all(isinstance(report, Weather) for report in create(response_model=list[Weather]))
    assert isinstance(create(response_model=int), int)
    assert isinstance(create(response_model=bool), bool)
    assert create(response_model=Literal["a", "b"]) in {"a", "b"}


def partial_stream(url: str) -> None:
    """A partial model requires nothing, and so does the schema that is sent for it."""
    *_, last = _opened(url).create_partial(response_model=LooseWeather, **_BODY)
    assert LooseWeather.model_validate(last.model_dump())
    *_, last = _opened(url).create(response_model=Partial[LooseWeather], stream=True, max_retries=0, **_BODY)
    assert LooseWeather.model_validate(last.model_dump())


def iterable_stream(url: str) -> None:
    try:
        found = list(_opened(url).create_iterable(response_model=Weather, **_BODY))
    except pydantic.ValidationError as error:
        # Instructor (1.17) takes any object of the stream for a report: {} where the untrained model writes another key.
        assert error.errors()[0]["type"] == "missing", error
    else:
        assert all(isinstance(report, Weather) for report in found)


def with_the_completion(url: str) -> None:
    report, completion = _opened(url).create_with_completion(response_model=Weather, **_BODY)
    assert isinstance(report, Weather)
    assert completion.choices[0].message.tool_calls
