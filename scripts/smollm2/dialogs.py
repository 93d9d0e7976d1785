"""Writes the dialogs that SmolLM2 learns from: right calls, results, and answers without a call."""

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from jsonschema import Draft202012Validator

from constrained_k2.evaluation.sample import ExpectedCall, Sample
from scripts.small_model.dialogs import Dialog, answered_dialogs, arguments_text
from scripts.smollm2.questions import Questions

_GENERATED = 0.2  # share of dialogs with the tools of ``scripts/small_model``
_MIXED = 0.4  # share of the others with the tools of another question too
_TURNS = (1, 2, 3, 3)  # user messages
_UNCALLED = 0.3  # share of questions that no tool can answer, if the list of tools has any
_AT_ONCE = (1, 1, 2, 3)  # questions of a message
_SPOKEN = 0.15  # share of calls with a text before them
_SHORT = 0.8  # share of dialogs whose tools have short descriptions
_SENTENCE = 80  # characters
_MOST_DRAWN = 16  # the most weight of a list of tools; a question with a call weighs four, another one weighs one

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


def _shortened(value: Any) -> Any:
    """Cut each description of a tool to its first sentence, so that more of a dialog is the assistant's."""
    if isinstance(value, list):
        return [_shortened(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: part.partition(". ")[0][:_SENTENCE]
        if name == "description" and isinstance(part, str)
        else _shortened(part)
        for name, part in value.items()
    }


def _names(tools: Iterable[Mapping[str, Any]]) -> set[str]:
    return {tool["function"]["name"] for tool in tools}


class _Pool:
    """The questions about one list of tools."""

    def __init__(self) -> None:
        self.called: list[tuple[Sample, list[Call]]] = []
        self.no_tool: list[Sample] = []


class Author:
    """Draws dialogs without a function of the tests, endlessly; a seed draws the same ones again."""

    def __init__(self, questions: Questions, seed: int) -> None:
        self._chance = random.Random(seed)  # noqa: S311 - drawing samples
        tested = {name for sample in questions.tests for name in sample.tools}
        generated = answered_dialogs(seed, held_out=False, turns=3)
        self._generated = (dialog for dialog in generated if tested.isdisjoint(_names(dialog["tools"])))
        pools: dict[str, _Pool] = {}
        for sample in questions.learnt:
            pool = pools.setdefault(json.dumps(sample.body["tools"]), _Pool())
            if not sample.expected:
                pool.no_tool.append(sample)
            elif calls := right_calls(sample):
                pool.called.append((sample, calls))
        self._pools = [pool for pool in pools.values() if pool.called or pool.no_tool]
        self._callable = [pool for pool in self._pools if pool.called]
        self._sizes = [min(4 * len(pool.called) + len(pool.no_tool), _MOST_DRAWN) for pool in self._pools]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while True:
            yield next(self._generated) if self._chance.random() < _GENERATED else self._dialog()

    def _dialog(self) -> dict[str, Any]:
        """Ask up to three times about the tools of one question, or of two."""
        (pool,) = self._chance.choices(self._pools, self._sizes)
        called, no_tool = list(pool.called), list(pool.no_tool)
        tools = list((called[0][0] if called else no_tool[0]).body["tools"])
        if called and self._chance.random() < _MIXED:  # what no tool of one list can do, one of the other may
            no_tool = []
            other = self._chance.choice(self._callable)
            others = other.called[0][0].body["tools"]
            if _names(tools).isdisjoint(_names(others)):
                tools, called = tools + others, called + other.called
        self._chance.shuffle(called)
        self._chance.shuffle(no_tool)
        dialog = Dialog([], ())
        for _ in range(self._chance.choice(_TURNS)):
            if no_tool and (not called or self._chance.random() < _UNCALLED):
                dialog.messages += no_tool.pop().body["messages"][-1:]
                dialog.say("assistant", self._chance.choice(_NO_TOOL))
            elif called:
                drawn = [called.pop() for _ in range(min(len(called), self._chance.choice(_AT_ONCE)))]
                self._ask(dialog, drawn)
        tools = self._chance.sample(tools, len(tools))
        return {"messages": dialog.messages, "tools": _shortened(tools) if self._chance.random() < _SHORT else tools}

    def _ask(self, dialog: Dialog, drawn: Sequence[tuple[Sample, list[Call]]]) -> None:
        """Ask questions in one message; answer with their calls, those with results, and these with a text."""
        first, *others = (sample.body["messages"] for sample, _ in drawn)
        if not dialog.messages and not others:
            dialog.messages += first
        else:
            texts = (message["content"].strip() for message in (first[-1], *(other[-1] for other in others)))
            dialog.say("user", next(texts) + "".join(f" {self._chance.choice(_JOINS)}{text}" for text in texts))
        dialog.call([(name, arguments_text(arguments)) for _, calls in drawn for name, arguments in calls])
        made = dialog.messages[-1]
        made["content"] = self._chance.choice(_FIRST) if self._chance.random() < _SPOKEN else ""
        answers = []
        for call in made["tool_calls"]:
            result, answer = self._chance.choice(_DONE)
            code = self._chance.randint(100, 999)
            dialog.messages.append({"role": "tool", "tool_call_id": call["id"], "content": result.format(code)})
            answers.append(answer.format(code))
        dialog.say("assistant", " ".join(answers))
