"""Every row of the table on every endpoint, whole and streamed, beside a server without this package."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jsonschema
import pytest

from constrained_k2.evaluation.server import VllmServer
from constrained_k2.schema.dialects import in_json_schema
from tests.clients.asking import ask
from tests.clients.endpoints import PATHS
from tests.clients.table import Row, rows
from tests.kit.answers import Seen, is_json
from tests.kit.budget import SEED, tries

pytestmark = pytest.mark.server

ONE_IN = tries(3, everything=1)  # rows; the commit chooses them
_MAX_TOKENS = 160
CUT = {"length", "incomplete", "max_tokens"}
_STOCK_MAX_TOKENS = 2  # of stock vLLM only the status counts


@dataclass(frozen=True, slots=True)
class Asked:
    """The answers to all rows of an endpoint: of this package whole and streamed, and of stock vLLM."""

    endpoint: str
    rows: list[Row]
    whole: list[Seen]
    streamed: list[Seen]
    stock_whole: list[Seen]
    stock_streamed: list[Seen]

    def ours(self) -> Iterator[tuple[Row, str, Seen]]:
        """Each row with each of our two answers."""
        for row, whole, streamed in zip(self.rows, self.whole, self.streamed, strict=True):
            yield row, "whole", whole
            yield row, "streamed", streamed


@pytest.fixture(scope="package", params=PATHS)
def asked(request: pytest.FixtureRequest, served: VllmServer, stock: VllmServer) -> Asked:
    endpoint = request.param
    table = [row for row in rows() if endpoint in row.only]
    table = table[SEED % ONE_IN :: ONE_IN]
    answers = [
        ask(server.url, endpoint, table, stream=stream, max_tokens=tokens)
        for server, tokens in ((served, _MAX_TOKENS), (stock, _STOCK_MAX_TOKENS))
        for stream in (False, True)
    ]
    return Asked(endpoint, table, *answers)


def test_what_stock_vllm_takes_is_taken(asked: Asked) -> None:
    stock_answers = (answer for pair in zip(asked.stock_whole, asked.stock_streamed, strict=True) for answer in pair)
    taken, refused = 0, []
    for (row, form, answer), stock_answer in zip(asked.ours(), stock_answers, strict=True):
        if not stock_answer.is_good:
            continue
        taken += 1
        may_call = row.tools is not None and row.choice != "none"
        has_reason = may_call and row.fields.keys() & _refused_fields(asked.endpoint)
        if not answer.is_good and not has_reason:
            refused.append(f"{row.name} [{form}]: {answer.status} {answer.problem[:200]}")
    assert taken > len(asked.rows)
    assert not refused, "\n".join(["", *refused])


def _refused_fields(endpoint: str) -> set[str]:
    """The fields that the table of reasons refuses beside tools that may be called."""
    from constrained_k2.vllm_plugin.api_server.refusals import REASONS

    found = {row.field for row in REASONS if row.outcome == "refused" and endpoint in row.endpoints}
    return found | ({"response_format"} if "structured_outputs" in found else set())  # one constraint by two names


def test_no_request_is_an_error_of_the_server(asked: Asked) -> None:
    ours = (
        (f"{row.name} [{form}]: {answer.status} {answer.problem[:200]}", answer) for row, form, answer in asked.ours()
    )
    failed = [shown for shown, answer in ours if answer.status >= 500]
    assert not failed, "\n".join(["", *failed])


def test_answers_are_what_was_asked_for(asked: Asked) -> None:
    good = [(row, form, answer) for row, form, answer in asked.ours() if answer.is_good]
    if asked.endpoint == "completions":  # beside tools their text has the calls, which nothing reads
        good = [(row, form, answer) for row, form, answer in good if row.tools is None]
    problems = [
        f"{row.name} [{form}]: {problem}"
        for row, form, answer in good
        for problem in (*_problems(row, answer), *_problems_of_choice(row, answer, asked.endpoint))
    ]
    assert any(answer.calls for _, _, answer in good) or asked.endpoint == "completions"
    assert not problems, "\n".join(["", *problems])


_INPUT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


def _problems(row: Row, answer: Seen) -> Iterator[str]:
    """The faults of an answer's calls and of its text."""
    schemas: dict[str, list[Any]] = {}
    for tool in row.tools or ():
        for inner in tool.get("tools", ()):  # a namespace's
            schemas.setdefault(f"{tool['name']}__{inner['name']}", []).append(inner["parameters"])
        if tool.get("type") == "custom":  # in chats, a function of one string
            schemas.setdefault(tool["name"], []).append(_INPUT)
        if function := tool.get("function"):
            schemas.setdefault(function["name"], []).append(function.get("parameters") or {"type": "object"})
    calls = sum(len(message.get("tool_calls", ())) for message in row.messages)
    first = max(calls, sum(message["role"] == "tool" for message in row.messages))  # a result implies its call
    for index, (call_id, name, arguments) in enumerate(answer.calls, first):
        if call_id != f"functions.{name}:{index}":
            yield f"the id is {call_id!r}, expected functions.{name}:{index}"
        if name not in schemas:
            yield f"{name!r} is not declared"
        elif not any(_is_valid(schema, arguments) for schema in schemas[name]):
            yield f"{name}: {arguments[:200]}"
    if row.fields.get("parallel_tool_calls") is False and len(answer.calls) > 1:
        yield f"{len(answer.calls)} calls"
    is_cut = answer.reason in CUT or row.fields.get("ignore_eos") or row.fields.get("stop")
    if not answer.calls and not is_cut and not _has_the_form(row.fields, answer.content):
        yield f"the text is {answer.content[:200]!r}"


def _problems_of_choice(row: Row, answer: Seen, endpoint: str) -> Iterator[str]:
    called, choice = [name for _, name, _ in answer.calls], row.choice
    if isinstance(choice, dict) and row.tools:
        allowed = choice.get("allowed_tools")
        choice = allowed["mode"] if allowed else "required"
        has_choice = not allowed or endpoint != "messages"  # which has no allowed tools: the body names the mode alone
        if has_choice and set(called) - {row.tools[0]["function"]["name"]}:
            yield f"a call of a tool that is not the chosen one: {called}"
    if choice == "none" and called:
        yield f"calls that are not allowed: {called}"
    if choice == "required" and not called and answer.reason not in CUT:
        yield f"no call: {answer.content[:200]!r}"


def _is_valid(schema: Any, text: str) -> bool:
    return bool(jsonschema.Draft202012Validator(in_json_schema(schema)[0]).is_valid(json.loads(text)))


def _has_the_form(fields: dict[str, Any], text: str) -> bool:
    wanted = fields.get("structured_outputs", {})
    form = fields.get("response_format", {})
    if form.get("type") in {"json_object", "json_schema"}:
        wanted = {"json": form.get("json_schema", {}).get("schema", {"type": "object"})}
    if "json" in wanted:
        return is_json(text) and _is_valid(wanted["json"], text)
    if "regex" in wanted:
        return re.fullmatch(wanted["regex"], text) is not None
    return not wanted or text in wanted.get("choice", {"a", "b"})


def test_a_stream_says_what_the_whole_answer_says(asked: Asked, served: VllmServer) -> None:
    """Under one seed. Rows that differ are asked again one at a time: sums in another order may change a token."""
    pairs = zip(asked.rows, asked.whole, asked.streamed, strict=True)
    differ = [row for row, whole, streamed in pairs if whole.is_good and streamed.is_good and whole != streamed]
    assert len(differ) < len(asked.rows) / 4, [row.name for row in differ]
    whole, streamed = (
        ask(served.url, asked.endpoint, differ, stream=stream, max_tokens=_MAX_TOKENS, at_once=1)
        for stream in (False, True)
    )
    again = [f"{row.name}:\n  {a}\n  {b}" for row, a, b in zip(differ, whole, streamed, strict=True) if a != b]
    assert not again, "\n".join(["", *again])
