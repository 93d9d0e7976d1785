"""The mixed load: constrained calls among requests of every other kind, broken off, too costly and hostile ones."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from constrained_k2.evaluation.samples import Sample, built_in_samples
from constrained_k2.evaluation.schemas.corpora import hostile

MODEL = "kimi-k2"
_HOSTILE_BYTES = 100_000  # a body of megabytes would measure the web server
_SHORT = 24  # tokens of an answer that is only compared

Expectation = Literal["valid", "same", "refused", "served"]
"""What an answer must be: calls all valid; to the byte what a server without the plugin says; HTTP 400; any but 500."""


@dataclass(frozen=True, slots=True)
class Load:
    """One request of the mix.

    Attributes:
        number: Its number.
        kind: What it tries, a column of the report.
        path: The endpoint.
        body: The JSON body.
        expect: What its answer must be.
        abort_after: After how many events of the stream the client goes away; None to read it all.
        sample: The sample it is made of, for judging calls.
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


def mixed_load(count: int, seed: int = 0) -> Iterator[Load]:
    """The mix, its kinds in turn.

    Args:
        count: How many requests.
        seed: Of the samples and of what the requests ask.
    """
    chance = random.Random(seed)  # noqa: S311 - choosing requests
    samples = iter(built_in_samples(count, seed))
    nasty = [case for case in hostile() if len(case.schema) < _HOSTILE_BYTES]
    for number in range(count):
        ask = [{"role": "user", "content": f"{chance.choice(_ASKS)} ({chance.randrange(1000)})"}]
        common = {"model": MODEL, "seed": number, "temperature": 1.0}
        chat = common | {"messages": ask, "max_tokens": _SHORT}
        text = common | {"prompt": ask[0]["content"], "max_tokens": _SHORT}
        turn = number % 12
        if turn in {0, 2, 4, 6}:
            sample = next(samples)
            body = common | sample.body | {"stream": sample.stream, "max_tokens": 1500}
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
            case = nasty[number // 12 % len(nasty)]
            tool = _function("hostile", _parameters(case.schema))
            yield Load(number, "hostile", _CHAT, chat | {"tools": [tool], "tool_choice": "required"}, "served")


_CHAT = "/v1/chat/completions"
_TEXT = "/v1/completions"


def _function(name: str, parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def _parameters(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:  # too deep for Python's reader: as deep as it reads
        return {"type": "object", "properties": {"value": {"$ref": "#"}}}
