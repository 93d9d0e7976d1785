"""The mixed load: constrained calls among plain, aborted, too costly and hostile requests."""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.schemas.corpora import hostile
from constrained_k2.evaluation.sample import Sample
from scripts.bundled_samples.ordinary import ordinary_samples

MODEL = "kimi-k2"
ADAPTER = "adapter"  # the name of the LoRA adapter, if the server has one
_HOSTILE_BYTES = 100_000  # a body of megabytes would only measure the web server
_SHORT = 24  # max_tokens of an answer that is only compared

Expectation = Literal["valid", "same", "refused", "served"]
"""Valid calls; the same bytes as from a server without the plugin; HTTP 400; anything but HTTP 500."""


@dataclass(frozen=True, slots=True)
class Load:
    """One request of the mix.

    Attributes:
        number: Its number.
        kind: Its kind, a row of the report.
        path: The endpoint.
        body: The JSON body.
        expect: The expected answer.
        abort_after: Number of stream events after which the client disconnects; None to read everything.
        sample: The sample with the expected calls.
    """

    number: int
    kind: str
    path: str
    body: dict[str, Any] = field(repr=False)
    expect: Expectation
    abort_after: int | None = None
    sample: Sample | None = field(default=None, repr=False)


_ANSWER = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Oslo", "Bergen", "Tromsø"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "sunny": {"type": "boolean"},
    },
    "required": ["city", "days", "sunny"],
    "additionalProperties": False,
}
_TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<answer>", "schema": _ANSWER, "end": "</answer>"}],
    "triggers": ["<answer>"],
}
_ASKS = ("How are you?", "Tell me of Oslo.", "Name three rivers.", "请帮我查一下天气", "Write a haiku on caches.")


def mixed_load(count: int, seed: int = 0, models: Sequence[str] = (MODEL,)) -> Iterator[Load]:
    """Yield ``count`` requests, cycling through the kinds; ``seed`` selects samples and texts.

    Each round of kinds goes to the next of ``models``.
    """
    chance = random.Random(seed)  # noqa: S311 - choosing requests
    samples = iter(ordinary_samples(count, seed))
    hostile_cases = [case for case in hostile() if len(case.schema) < _HOSTILE_BYTES]
    for number in range(count):
        ask = [{"role": "user", "content": f"{chance.choice(_ASKS)} ({chance.randrange(1000)})"}]
        common = {"model": models[number // 12 % len(models)], "seed": number, "temperature": 1.0}
        # Our tool parser shows no special tokens otherwise; vLLM without it does.
        chat = common | {"messages": ask, "max_tokens": _SHORT, "skip_special_tokens": False}
        text = common | {"prompt": ask[0]["content"], "max_tokens": _SHORT}
        turn = number % 12
        if turn in {0, 2, 4, 6}:
            sample = next(samples)
            several = {"n": 2, "stream": False} if turn == 6 else {"stream": sample.stream}
            body = common | sample.body | {"max_tokens": 1500} | several
            yield Load(number, "constrained", _CHAT, body, "valid", sample=sample)
        elif turn == 1:
            yield Load(number, "text", _CHAT, chat, "same")
        elif turn == 3:
            form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": _ANSWER}}
            yield Load(number, "json_schema", _CHAT, chat | {"response_format": form}, "same")
        elif turn == 5:
            constraint = {"structured_outputs": {"regex": r"[a-z]{3}-[0-9]{4}"}}
            yield Load(number, "regex", _TEXT, text | constraint, "same")
        elif turn == 7:
            yield Load(number, "structural_tag", _CHAT, chat | {"response_format": _TAG}, "same")
        elif turn == 8:
            yield Load(number, "logprobs", _TEXT, text | {"logprobs": 2, "n": 2, "temperature": 0.7}, "same")
        elif turn == 9:
            sample = next(samples)
            body = common | sample.body | {"stream": True, "max_tokens": 1500}
            yield Load(number, "aborted", _CHAT, body, "served", abort_after=chance.randint(1, 12))
        elif turn == 10:
            wide = {"type": "object", "properties": {"value": {"enum": list(range(100_000 + number))}}}
            body = chat | {"tools": [_function("wide", wide)], "tool_choice": "required"}
            yield Load(number, "over budget", _CHAT, body, "refused")
        else:
            case = hostile_cases[number // 12 % len(hostile_cases)]
            tool = _function("hostile", _parameters(case.schema))
            yield Load(number, "hostile", _CHAT, chat | {"tools": [tool], "tool_choice": "required"}, "served")


_CHAT = "/v1/chat/completions"
_TEXT = "/v1/completions"


def _function(name: str, parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def _parameters(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:  # too deep for Python's parser: use a recursive schema
        return {"type": "object", "properties": {"value": {"$ref": "#"}}}
