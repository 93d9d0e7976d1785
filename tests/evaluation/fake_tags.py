"""A server of Kimi K3 that does everything right, except for the faults it is told to have."""

import json
import re
from typing import Any

from constrained_k2 import ToolCall, ToolCallSpec, parse_completion
from constrained_k2.formats.kimi_k3 import CLOSE, KIMI_K3, SEPARATOR, SPECIAL_TOKENS
from constrained_k2.prompts.xtml import Pieces, XtmlRenderer, render_turn
from constrained_k2.prompts.xtml.options import read_options
from constrained_k2.prompts.xtml.prompt import write_prompt
from tests.evaluation.fake_model import FakeModel
from tests.evaluation.fake_server import GOOD, Fake
from tests.prompts.kimi_k3 import BYTES

_SPECIAL = re.compile("(" + "|".join(map(re.escape, SPECIAL_TOKENS.values())) + ")")
_MARK = "\x01"  # becomes a special token


def tokens(text: str) -> list[int]:
    """The ids of a text in which special tokens are spelled."""
    special = BYTES.special_tokens
    return [token for part in _SPECIAL.split(text) for token in ([special[part]] if part in special else part.encode())]


class TagFake(Fake):
    """A server of Kimi K3 on loopback."""

    def tokenize(self, body: Any) -> Any:
        return {"tokens": self.prompt(body) if "prompt" not in body else tokens(body["prompt"])}

    def detokenize(self, body: Any) -> Any:
        return {"prompt": BYTES.decode(body["tokens"])}

    def model(self, body: Any) -> FakeModel:
        return TagModel(self, body)

    def prompt(self, body: Any) -> list[int]:
        """The prompt's ids; text of clients stays text."""
        body = self.understood(json.loads(json.dumps(body)))
        if not self.has("does not pair"):
            body = XtmlRenderer(BYTES).render(body, contract=False).body
        written = Pieces()
        for text, is_special in write_prompt(body, read_options(body)).items:
            for part in _SPECIAL.split(text) if self.has("injects") and not is_special else [text]:
                is_injected = self.has("injects") and part in BYTES.special_tokens
                (written.special if is_special or is_injected else written.text)(part)
        return written.encode(BYTES)

    def understood(self, body: Any) -> Any:
        """The request, as the server reads it."""
        if self.has("no generation prompt"):
            body["add_generation_prompt"] = False
        body["messages"] = [self.changed(message) for message in body["messages"]]
        calls: list[Any] = []
        for message in body["messages"] if self.has("results as sent") else ():
            if message["role"] == "tool":
                message |= {"tool": calls.pop(0)["function"]["name"], "tool_call_id": None}
            calls = [*(message.get("tool_calls") or calls)]
        return body

    def changed(self, message: Any) -> Any:
        if self.has("one name of reasoning"):
            message.pop("reasoning_content", None)
        for call in message.get("tool_calls") or ():
            function = call["function"]
            if self.has("renames calls"):
                function["name"] = "tables"
            if self.has("trims arguments"):
                function["arguments"] = function["arguments"].replace('" <', '"<')
            if self.has("leaves arguments out"):
                function["arguments"] = "{}"
        return message


class TagModel(FakeModel):
    """One request's answers."""

    @property
    def reasons(self) -> bool:
        return BYTES.opens_reasoning(self.prompt_ids)

    @property
    def pushed(self) -> bool:
        return any(strength > 0 for strength in (self.body.get("logit_bias") or {}).values())

    def encoded(self) -> list[int]:
        """The whole turn, its end included."""
        body, choice = self.body, self.body.get("tool_choice", "none")
        prompt = str(body["messages"][-1]["content"])
        if self.pushed and (
            (choice == "auto" and self.has("free under auto")) or (choice == "none" and self.has("leaks markers"))
        ):
            return [KIMI_K3_OPEN] * 8
        reasoning = "Seventeen and so on." if self.reasons or self.has("always reasons") else None
        refuses = self.has("obeys the model") and ("Call " not in prompt or self.pushed)
        calls_under_none = choice == "none" and self.has("calls under none")
        if self.pushed and not body.get("tools"):
            return [BYTES.format.turn_end] * (20 if self.has("runs on") else 1)
        if not body.get("tools") or (choice == "none" and not calls_under_none) or refuses:
            return render_turn([], BYTES, response="Blue scatters.", reasoning=reasoning)
        if choice == "auto" and "Do not" in prompt:
            return render_turn([], BYTES, response="I would rather not.", reasoning=reasoning)
        one = (body.get("parallel_tool_calls") is False and not self.has("many calls")) or isinstance(choice, dict)
        count = 3 if "twice" in prompt and not one and not self.has("spells tags") else 1
        calls = [self.made(choice, number) for number in range(count)]
        ids = render_turn(calls, BYTES, reasoning=reasoning, first_index=1)
        if self.has("spells tags"):
            ids = [*BYTES.decode(ids[:-1]).encode(), ids[-1]]
        return [BYTES.special_tokens["[BOS]"] if token_id == ord(_MARK) else token_id for token_id in ids]

    def made(self, choice: Any, number: int) -> ToolCall:
        name = choice["function"]["name"] if isinstance(choice, dict) else ("list_tables" if number else "book_table")
        if self.has("names another"):
            name = "list_tables" if name == "book_table" else "book_table"
        declared = [tool["function"]["name"] for tool in self.body["tools"]]
        name = name if name in declared else declared[0]
        arguments = "{}"
        if name == "book_table":
            arguments = GOOD.replace('"guests": 2', '"guests": 400') if self.has("invalid arguments") else GOOD
        elif name == "search":
            arguments = json.dumps({"query": 20 * (_MARK if self.has("special tokens in strings") else ".")})
        return ToolCall(name, number + 1, arguments)

    def parsed(self) -> tuple[str, str, str, list[tuple[str, str, str]]]:
        """``(finish_reason, reasoning, content, calls)``; a stream shows cut calls too."""
        tools = ToolCallSpec.from_openai({"tools": self.body.get("tools") or []}).tools
        parsed = parse_completion(self.ids, BYTES, level="tolerant", in_reasoning=self.reasons, tools=tools)
        first = (
            0 if self.has("repeats ids") else sum(len(each.get("tool_calls") or ()) for each in self.body["messages"])
        )
        calls = [
            (f"functions.{call.name}:{0 if self.has('repeats ids') else at}", call.name, self.returned(call.arguments))
            for at, call in enumerate(parsed.tool_calls, first)
        ]
        if self.has("last part of names"):
            calls = [(call_id, name.rpartition(".")[2], text) for call_id, name, text in calls]
        if parsed.cut_calls and (self.body.get("stream") or self.has("hands over pieces")):
            calls.append(("functions.cut:9", "cut", '{"a'))
        if self.has("loses calls"):
            calls = calls[:1]
        content, reasoning = parsed.content, parsed.reasoning
        if self.has("reasoning is content") and reasoning:
            reasoning, content = "", f"{reasoning}{CLOSE}think{SEPARATOR}{content}"
        if self.has("always reasons"):
            reasoning = "Seventeen and so on."
        finish = "length" if self.cut else "tool_calls" if calls else "stop"
        return finish, reasoning, content, calls

    def returned(self, arguments: str) -> str:
        """Arguments, as the parser returns them."""
        if self.has("reformats"):
            return json.dumps(json.loads(arguments), separators=(",", ":"), ensure_ascii=False)
        return arguments


KIMI_K3_OPEN = BYTES.special_tokens[KIMI_K3.marker_texts["call_begin"]]
