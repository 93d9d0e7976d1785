"""A server of Kimi K3 that does everything right, except for the faults it is told to have."""

import json
import re
from typing import Any

from constrained_k2 import ToolCall, ToolCallSpec, parse_completion
from constrained_k2.formats.kimi_k3 import CLOSE, SEPARATOR, SPECIAL_TOKENS
from constrained_k2.prompts.xtml import Pieces, XtmlRenderer, render_turn
from constrained_k2.prompts.xtml.options import read_options
from constrained_k2.prompts.xtml.prompt import write_prompt
from tests.evaluation.fake_server import Call, Fake, FakeModel
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

    string, string_of_specials = 20 * ".", 20 * "\\u0001"

    @property
    def reasons(self) -> bool:
        return BYTES.opens_reasoning(self.prompt_ids)

    def encoded(self) -> list[int]:
        """The whole turn, its end included."""
        if self.leaks:
            return [BYTES.format.call_begin] * 8
        if self.is_pushed and not self.body.get("tools"):
            return [BYTES.format.turn_end] * (20 if self.has("runs on") else 1)
        reasoning = "Seventeen and so on." if self.reasons or self.has("always reasons") else None
        said = self.said()
        if isinstance(said, str):
            return render_turn([], BYTES, response=said, reasoning=reasoning)
        calls = [ToolCall(name, number, arguments) for number, (name, arguments) in enumerate(said, 1)]
        ids = render_turn(calls, BYTES, reasoning=reasoning, first_index=1)
        if self.has("spells tags"):
            ids = [*BYTES.decode(ids[:-1]).encode(), ids[-1]]
        return [BYTES.special_tokens["[BOS]"] if token_id == ord(_MARK) else token_id for token_id in ids]

    def read(self) -> tuple[str, str, list[Call]]:
        tools = ToolCallSpec.from_openai({"tools": self.body.get("tools") or []}).tools
        parsed = parse_completion(self.ids, BYTES, level="tolerant", in_reasoning=self.reasons, tools=tools)
        first, step = (0, 0) if self.has("repeats ids") else (self.earlier_calls, 1)
        calls = [
            (f"functions.{call.name}:{first + step * at}", call.name, self.returned(call.arguments))
            for at, call in enumerate(parsed.tool_calls)
        ]
        if parsed.cut_calls and (self.body.get("stream") or self.has("hands over pieces")):
            calls.append(("functions.cut:9", "cut", '{"a'))
        content, reasoning = parsed.content, parsed.reasoning
        if self.has("reasoning is content") and reasoning:
            reasoning, content = "", f"{reasoning}{CLOSE}think{SEPARATOR}{content}"
        return "Seventeen and so on." if self.has("always reasons") else reasoning, content, calls
