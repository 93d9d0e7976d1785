"""Writes dialogs with the catalogue's tools: requests, calls, results and answers, for training and held out."""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from constrained_k2.formats.kimi_k2 import KIMI_K2
from scripts.small_model.catalogue import TOOLS, Argument, Declared, Tool
from scripts.small_model.values import Draw, Value, is_held_out

CHATS = (
    ("Hello!", "Hello! What can I do for you?"),
    ("Thank you!", "You're welcome."),
    ("Who are you?", "I am Kimi, an AI assistant."),
    ("What can you do?", "I can answer questions and use tools."),
    ("That is all for today.", "Goodbye!"),
)
NO_TOOL = "I have no tool for that."
SECOND = ("Also, {}", "And then: {}", "Besides, {}")
_CATEGORIES = {"single": 50, "parallel": 20, "result": 10, "no_tool": 10, "chat": 10}
"""Kinds of request in the last turn of a dialog, with their frequencies."""


@dataclass(slots=True)
class Dialog:
    """A dialog under construction."""

    messages: list[dict[str, Any]]
    tools: Sequence[Declared]
    calls: int = 0  # in the messages

    def declarations(self) -> list[dict[str, Any]]:
        """Return the tools in OpenAI's form."""
        return [declared.tool.declaration(declared.variant) for declared in self.tools]

    def say(self, role: str, content: str) -> None:
        """Add a text message."""
        self.messages.append({"role": role, "content": content})

    def call(self, calls: Sequence[tuple[str, str]]) -> None:
        """Add an assistant message with calls, each a name and the text of its arguments."""
        made = []
        for name, arguments in calls:
            function = {"name": name, "arguments": arguments}
            made.append({"id": KIMI_K2.call_id(name, self.calls), "type": "function", "function": function})
            self.calls += 1
        self.messages.append({"role": "assistant", "content": "", "tool_calls": made})


@dataclass(frozen=True, slots=True)
class Wanted:
    """The expected answer to the last message of a dialog."""

    category: str  # one of the kinds above
    calls: Sequence[tuple[str, dict[str, Any]]] = ()  # name and arguments
    answer: str = ""  # if no call is expected


@dataclass(frozen=True, slots=True)
class Faults:
    """Frequencies of wrong calls in the training data, so that the small model makes mistakes that a check finds.

    They are set by hand; sampling adds no further mistakes.
    """

    number: float = 0.0  # of integers that are written as strings
    enum: float = 0.0  # of enum values in the request's words or in upper case
    name: float = 0.0  # of calls with another variant of the tool's name
    missing: float = 0.0  # of calls without their last required argument

    def of(self, declared: Declared, arguments: Mapping[str, Any], chance: random.Random) -> tuple[str, dict[str, Any]]:
        """Return the name and arguments of a call of a declared tool, with random faults."""
        tool = declared.tool
        known = {argument.key(declared.variant): argument for argument in tool.required + tool.optional}
        found = {key: self._value(known[key], value, chance) for key, value in arguments.items()}
        if tool.required and chance.random() < self.missing:
            found.pop(tool.required[-1].key(declared.variant))
        others = [name for name in tool.names if name != declared.name]
        return chance.choice(others) if chance.random() < self.name else declared.name, found

    def _value(self, argument: Argument, value: Any, chance: random.Random) -> Any:
        if argument.schema.get("type") == "integer" and chance.random() < self.number:
            return str(value)
        if "enum" in argument.schema and chance.random() < self.enum:
            said = next(text for text, meant in argument.options["words"].items() if meant == value)
            return said if said != value else value.upper()
        return value


class Author:
    """Writes dialogs of the training side or of the held-out side, whose values training never sees."""

    def __init__(self, seed: int, *, held_out: bool, faults: Faults | None = None) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - drawing samples
        self.draw = Draw(self.chance, held_out=held_out)
        self.held_out = held_out
        self.faults = faults

    def open(self) -> Dialog:
        """Start a dialog with two or three tools, each in one of its variants."""
        tools = self.chance.sample(TOOLS, self.chance.randint(2, 3))
        return Dialog([], [Declared(tool, self.chance.randrange(len(tool.names))) for tool in tools])

    def ask(self, dialog: Dialog) -> Wanted:
        """Add a user's message, and return the expected answer."""
        kind = self.chance.choices(list(_CATEGORIES), list(_CATEGORIES.values()))[0]
        if kind == "chat":
            text, answer = self.chance.choice(CHATS)
            dialog.say("user", text)
            return Wanted(kind, answer=answer)
        if kind == "no_tool":
            known = {declared.tool.names for declared in dialog.tools}
            unknown = [tool for tool in TOOLS if tool.names not in known]
            text, _ = self._request(Declared(self.chance.choice(unknown), 0))
            dialog.say("user", text)
            return Wanted(kind, answer=NO_TOOL)
        pair = self._pair(dialog.tools) if kind == "parallel" else [self.chance.choice(dialog.tools)]
        if pair is None:
            kind, pair = "single", [self.chance.choice(dialog.tools)]
        requests = [self._request(declared) for declared in pair]
        text, *others = (text for text, _ in requests)
        for other in others:
            inside = other if other.startswith("I ") else other[0].lower() + other[1:]
            text += " " + self.chance.choice(SECOND).format(inside)
        dialog.say("user", text)
        calls = [(declared.name, arguments) for declared, (_, arguments) in zip(pair, requests, strict=True)]
        if kind == "result":
            return Wanted(kind, answer=self._made(dialog, calls))
        return Wanted(kind, calls)

    def answer(self, dialog: Dialog, wanted: Wanted) -> None:
        """Add the expected answer: text, or calls with their results and a summary."""
        dialog.say("assistant", self._made(dialog, wanted.calls) if wanted.calls else wanted.answer)

    def _made(self, dialog: Dialog, calls: Sequence[tuple[str, dict[str, Any]]]) -> str:
        """Add calls and their results, and return the text that summarizes them."""
        if self.faults is not None:
            tools = {declared.name: declared for declared in dialog.tools}
            calls = [self.faults.of(tools[name], arguments, self.chance) for name, arguments in calls]
        dialog.call([(name, arguments_text(arguments)) for name, arguments in calls])
        answers = []
        for call in dialog.messages[-1]["tool_calls"]:
            code = self.draw.kind("code").text
            result, answer = self.chance.choice(
                (
                    (f'{{"status":"ok","reference":"{code}"}}', f"Done, the reference is {code}."),
                    (f'{{"status":"failed","reference":"{code}"}}', f"That failed, see {code}."),
                )
            )
            dialog.messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
            answers.append(answer)
        return " ".join(answers)

    def _pair(self, tools: Sequence[Declared]) -> list[Declared] | None:
        """Return two of the tools in an order that belongs to this side of the split; None if there is none."""
        pairs = [
            [first, second]
            for first in tools
            for second in tools
            if is_held_out(f"{first.tool.names[0]}+{second.tool.names[0]}") == self.held_out
        ]
        return self.chance.choice(pairs) if pairs else None

    def _request(self, declared: Declared) -> tuple[str, dict[str, Any]]:
        """Return a request for one call, and the call's arguments."""
        tool, variant = declared.tool, declared.variant
        values = self._different(tool.required)
        arguments = {
            argument.key(variant): value.argument for argument, value in zip(tool.required, values, strict=True)
        }
        ask = self.chance.choice(tool.asks).format(*(value.text for value in values))
        parts, mark = [ask[:-1]], ask[-1]
        chosen = self._options(tool)
        for argument in chosen:
            value = self.draw.kind(argument.kind, **argument.options)
            parts.append(argument.phrase.format(value.text))
            arguments[argument.key(variant)] = value.argument
        return ", ".join(parts) + mark, arguments

    def _different(self, arguments: Sequence[Argument]) -> list[Value]:
        """Draw a distinct value for each argument."""
        while True:
            values = [self.draw.kind(argument.kind, **argument.options) for argument in arguments]
            if len({value.text for value in values}) == len(values):
                return values

    def _options(self, tool: Tool) -> list[Argument]:
        """Choose the optional arguments of a request; sets of two or more belong to one side of the split."""
        while True:
            chosen = [argument for argument in tool.optional if self.chance.random() < 0.4]
            key = "+".join((tool.names[0], *(argument.keys[0] for argument in chosen)))
            if self.held_out or len(chosen) < 2 or not is_held_out(key):
                return chosen


def arguments_text(arguments: dict[str, Any]) -> str:
    """Return arguments as compact JSON, which the small model learns to write."""
    return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))


def drawn_samples(count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield requests that training never saw, with the expected calls, as a line of K2VV's ``samples.jsonl`` and more.

    Values, pairs of tools in one request and sets of optional arguments are held out; the tools themselves are known.
    """
    author = Author(seed, held_out=True)
    for _ in range(count):
        dialog = author.open()
        for _ in range(author.chance.choice((0, 0, 0, 1, 2))):
            author.answer(dialog, author.ask(dialog))
        wanted = author.ask(dialog)
        expected = [{"name": name, "arguments": arguments} for name, arguments in wanted.calls]
        yield {
            "messages": dialog.messages,
            "tools": dialog.declarations(),
            "expected": {"calls": expected},
            "category": wanted.category,
        }


def answered_dialogs(
    seed: int, *, held_out: bool, turns: int = 6, faults: Faults | None = None
) -> Iterator[dict[str, Any]]:
    """Yield ``messages`` and ``tools`` of dialogs endlessly, answered correctly except for the faults.

    ``turns`` is the number of user messages in each.
    """
    author = Author(seed, held_out=held_out, faults=faults)
    while True:
        dialog = author.open()
        for _ in range(turns):
            author.answer(dialog, author.ask(dialog))
        yield {"messages": dialog.messages, "tools": dialog.declarations()}
