"""Do constraints bind, or does the model merely happen to obey?

Twice each: with a prompt that asks for the opposite, and with a ``logit_bias`` that pushes any model off the format. A
mask wins over both; a server that only parses, or corrects what came, loses to one of them.
"""

from typing import Any

from constrained_k2.evaluation.chat_answer import ChatAnswer
from constrained_k2.evaluation.doctor.bodies import EAGER, UNFIT, UNWILLING, chat, history, sample
from constrained_k2.evaluation.doctor.connection import Refused
from constrained_k2.evaluation.doctor.finding import Finding, ok, shown
from constrained_k2.evaluation.doctor.prompts import CALL, SECTION, TURN_END
from constrained_k2.evaluation.doctor.remedies import constraining
from constrained_k2.evaluation.doctor.target import Target
from constrained_k2.evaluation.samples import Sample
from constrained_k2.evaluation.scores import score

MAX_TOKENS = 2048  # some models reason for long before they call
_SAMPLES = 4
_PUSH = 100  # the most that OpenAI's logit_bias takes
_NAMED = {"type": "function", "function": {"name": "list_tables"}}


async def required(target: Target) -> Finding:
    """``tool_choice: required`` with a model that is told, and pushed, not to call."""
    answers = await _ask(target, chat(UNWILLING), push=TURN_END)
    return _judge(target, answers, chat(UNWILLING), "required")


async def arguments(target: Target) -> Finding:
    """Arguments are an instance of the schema, with a prompt that asks for values outside it."""
    body = chat(UNFIT, parallel_tool_calls=False)
    return _judge(target, await _ask(target, body, push=TURN_END), body, "required")


async def call_ids(target: Target) -> Finding:
    """Ids are ``functions.NAME:INDEX``, the index goes on from the history, and each is given once."""
    body = chat(EAGER) | {"messages": [*history("functions.list_tables:0")[:-1], *chat(EAGER)["messages"]]}
    return _judge(target, await _ask(target, body), body, "required", first_index=1)


async def named(target: Target) -> Finding:
    """A named function is called, once, whatever the prompt asks for."""
    return _judge(target, await _ask(target, chat(UNFIT, _NAMED), push=TURN_END), chat(UNFIT, _NAMED), "named")


async def single(target: Target) -> Finding:
    """``parallel_tool_calls: false`` is one call, whatever the prompt asks for."""
    body = chat(EAGER, parallel_tool_calls=False)
    return _judge(target, await _ask(target, body, push=CALL), body, "required")


async def none(target: Target) -> Finding:
    """``tool_choice: none`` is no call and no marker, whatever the prompt asks for."""
    answers = await _ask(target, chat(EAGER, "none", max_tokens=256), push=SECTION)
    called = [answer for answer in answers if answer.calls]
    leaked = [answer for answer in answers if "<|tool_call" in answer.content]
    if called:
        return Finding("fault", f"{len(called)} of {len(answers)} answers hold calls", constraining(target))
    if leaked:
        seen = f"{len(leaked)} of {len(answers)} answers hold markers: {shown(leaked[0].content, 80)!r}"
        return Finding("fault", seen, constraining(target))
    return ok(f"{len(answers)} answers, no call and no marker")


async def _ask(target: Target, body: dict[str, Any], push: str = "") -> list[ChatAnswer]:
    """Samples of one request, and of the same with a special token made overwhelmingly likely."""
    body = {"max_tokens": MAX_TOKENS, "temperature": 1.0, "seed": 1, "n": _SAMPLES} | body
    answers = await _several(target, body)
    if push and target.markers is not None:
        try:
            answers += await _several(target, body | {"logit_bias": {str(target.marker(push)): _PUSH}})
        except Refused as refusal:
            if "logit_bias" not in refusal.message:
                raise
    return answers


async def _several(target: Target, body: dict[str, Any]) -> list[ChatAnswer]:
    """``n`` answers, one by one where the server gives only one at a time."""
    answers = await target.chat(body)
    for seed in range(len(answers), body["n"]):
        answers += (await target.chat(body | {"n": 1, "seed": seed + 1}))[:1]
    return answers


def _judge(
    target: Target, answers: list[ChatAnswer], body: dict[str, Any], choice: str, first_index: int = 0
) -> Finding:
    """The finding on answers in which right calls are due."""
    asked = sample(body, choice, first_index)
    whole = [answer for answer in answers if answer.finish_reason != "length"]
    if not whole:
        seen = f"none of {len(answers)} answers ended within {MAX_TOKENS} tokens"
        return Finding("cannot tell", seen, "Try again, or with thinking off by default")
    problems = [problem for answer in whole if (problem := _problem(answer, asked))]
    if problems:
        seen = f"{len(problems)} of {len(whole)} answers are wrong: {problems[0]}"
        return Finding("fault", seen, constraining(target))
    calls = sum(len(answer.calls) for answer in whole)
    return ok(f"{len(whole)} answers, {calls} calls, all of them right")


def _problem(answer: ChatAnswer, asked: Sample) -> str:
    """What is wrong with one answer; empty if nothing is."""
    if not answer.calls:
        return f"no call, but {shown(answer.content, 60)!r}"
    try:
        found = score(asked, answer.scored)
    except (ValueError, RecursionError) as error:  # a name with a marker in it, a number of 5,000 digits, a deep nest
        return f"a call that cannot be read: {shown(str(error))}"
    if not found.calls == found.declared == found.valid:
        return shown(found.problems[0].removeprefix(f"#{asked.number}: "))
    if found.unasked:
        return f"{found.calls} calls where one is due"
    wanted = asked.body["tool_choice"]
    if isinstance(wanted, dict) and answer.calls[0][1] != wanted["function"]["name"]:
        return f"{shown(answer.calls[0][1], 60)} is called, not the named function"
    if found.numbered != found.calls:
        ids = ", ".join(shown(call_id, 60) for call_id, _, _ in answer.calls[:3])
        return f"the ids are {ids}, where functions.NAME:{asked.first_index} and so on are due"
    return ""
