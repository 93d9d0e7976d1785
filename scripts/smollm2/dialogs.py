"""Writes the dialogs that SmolLM2 learns from: right calls, results, and answers without a call."""

import copy
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jsonschema import Draft202012Validator

from constrained_k2.evaluation.sample import ExpectedCall, Sample
from constrained_k2.formats.kimi_k2 import KIMI_K2
from scripts.demo_model.dialogs import answered_dialogs, arguments_text

_KINDS = {"question": 35, "several": 25, "no_tool": 20, "generated": 20}
"""Kinds of dialog, with their frequencies; ``generated`` ones have the tools of ``scripts/demo_model``."""

_JOINS = ("Also, ", "And then: ", "Besides, ", "")
_FIRST = ("Let me look.", "I'll do that.", "One moment.", "I'll check that for you.")
_NO_TOOL = (
    "I have no tool for that.",
    "None of my tools can do that.",
    "I'm sorry, my tools cannot help with that.",
    "I can't do that with the tools that I have.",
)
_DONE = (
    ('{{"status":"ok","reference":"{}"}}', "Done, the reference is {}."),
    ('{{"error":"{}"}}', "That failed with the error {}."),
)
_LEAST, _MOST = 100, 999
_OTHERS = (0, 0, 0, 1, 2)
"""How many tools of another question are declared beside a question's own."""

Tools = list[dict[str, Any]]
Call = tuple[str, dict[str, Any]]


def right_calls(sample: Sample) -> list[Call] | None:
    """Return the calls of a right answer, by the leaderboard's accepted values; None if the schemas do not accept them.

    The first accepted value of each argument is taken. An argument that may be left out is written if the question
    names its value.
    """
    text = json.dumps(sample.body["messages"], ensure_ascii=False)
    calls = [(call.name, _arguments(call, text)) for call in sample.expected or ()]
    for name, arguments in calls:
        if name not in sample.tools or not Draft202012Validator(sample.tools[name] or {}).is_valid(arguments):
            return None
    return calls


def _arguments(call: ExpectedCall, text: str) -> dict[str, Any]:
    written = {}
    for name, values in call.arguments.items():
        value = _plain(next((value for value in values if value != ""), None))
        if value is not None and (name not in call.omissible or str(value) in text):
            written[name] = value
    return written


def _plain(value: Any) -> Any:
    """Take the first accepted value of each member of an accepted object; members without one are left out."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    lists = {name: values if isinstance(values, list) else [values] for name, values in value.items()}
    firsts = {name: next((one for one in values if one != ""), None) for name, values in lists.items()}
    return {name: _plain(first) for name, first in firsts.items() if first is not None}


class Author:
    """Draws dialogs from questions, endlessly; a seed draws the same ones again."""

    def __init__(self, learnt: Sequence[Sample], seed: int) -> None:
        self._chance = random.Random(seed)  # noqa: S311 - drawing samples
        self._generated = answered_dialogs(seed, held_out=False, turns=2)
        calls = ((sample, right_calls(sample)) for sample in learnt if sample.expected)
        self._called = [(sample, found) for sample, found in calls if found]
        self._alone = [(sample, found) for sample, found in self._called if len(found) == 1]
        self._no_tool = [sample for sample in learnt if sample.expected == ()]
        self._by_tools: dict[str, list[tuple[Sample, list[Call]]]] = {}
        for sample, found in self._alone:
            self._by_tools.setdefault(json.dumps(sample.body["tools"]), []).append((sample, found))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while True:
            kind = self._chance.choices(list(_KINDS), list(_KINDS.values()))[0]
            if kind == "generated":
                yield next(self._generated)
            elif kind == "no_tool":
                yield self._without_a_call()
            elif kind == "several":
                yield self._several()
            else:
                sample, calls = self._chance.choice(self._called)
                yield self._answered(sample.body["messages"], self._among_others(sample.body["tools"]), calls)

    def _without_a_call(self) -> dict[str, Any]:
        sample = self._chance.choice(self._no_tool)
        messages = [*sample.body["messages"], {"role": "assistant", "content": self._chance.choice(_NO_TOOL)}]
        return {"messages": messages, "tools": sample.body["tools"]}

    def _several(self) -> dict[str, Any]:
        """Ask two or three questions in one message, of one list of tools or of several."""
        count = self._chance.choice((2, 2, 3))
        alike = self._by_tools[json.dumps(self._chance.choice(self._alone)[0].body["tools"])]
        source = alike if len(alike) >= count and self._chance.random() < 0.5 else self._alone
        drawn = self._chance.sample(source, count)
        tools: Tools = []
        for sample, _ in drawn:
            known = {tool["function"]["name"] for tool in tools}
            tools += [tool for tool in sample.body["tools"] if tool["function"]["name"] not in known]
        first, *others = (sample.body["messages"][-1]["content"].strip() for sample, _ in drawn)
        text = " ".join([first, *(self._chance.choice(_JOINS) + other for other in others)])
        calls = [call for _, found in drawn for call in found]
        return self._answered([{"role": "user", "content": text}], self._shuffled(tools), calls)

    def _answered(self, asked: Sequence[Mapping[str, Any]], tools: Tools, calls: Sequence[Call]) -> dict[str, Any]:
        """Answer with the calls, some with a text before them, some with their results and a text after those."""
        content = self._chance.choice(_FIRST) if self._chance.random() < 0.15 else ""
        made = [
            {
                "id": KIMI_K2.call_id(name, index),
                "type": "function",
                "function": {"name": name, "arguments": arguments_text(arguments)},
            }
            for index, (name, arguments) in enumerate(calls)
        ]
        messages: list[Any] = [*asked, {"role": "assistant", "content": content, "tool_calls": made}]
        if self._chance.random() < 0.25:
            answers = []
            for call in made:
                result, answer = self._chance.choice(_DONE)
                code = self._chance.randint(_LEAST, _MOST)
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result.format(code)})
                answers.append(answer.format(code))
            messages.append({"role": "assistant", "content": " ".join(answers)})
        return {"messages": messages, "tools": tools}

    def _among_others(self, tools: Tools) -> Tools:
        """Add tools of another question, whose functions this question's do not belong together with."""
        other, _ = self._chance.choice(self._called)
        names = {tool["function"]["name"] for tool in tools}
        others = [tool for tool in other.body["tools"] if tool["function"]["name"] not in names]
        wanted = min(self._chance.choice(_OTHERS), len(others))
        return self._shuffled([*tools, *self._chance.sample(others, wanted)])

    def _shuffled(self, tools: Tools) -> Tools:
        return copy.deepcopy(self._chance.sample(tools, len(tools)))
