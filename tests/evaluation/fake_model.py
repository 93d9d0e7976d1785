"""The answers of the fake server's model, and how the server parses them."""

import json
import re
from typing import TYPE_CHECKING, Any

from tests.evaluation import fake_server

if TYPE_CHECKING:
    from tests.evaluation.fake_server import Fake

_CALL = re.compile(r"<\|tool_call_begin\|>(.*?)<\|tool_call_argument_begin\|>(.*?)(<\|tool_call_end\|>|\Z)", re.DOTALL)


class FakeModel:
    """One request's answers."""

    def __init__(self, fake: "Fake", body: Any) -> None:
        self.has = fake.has
        self.body = body
        self.prompt_ids = fake.prompt(body)
        ids = self.encoded()
        self.cut = len(ids) > body.get("max_tokens", 10_000)
        self.ids = ids[: body.get("max_tokens", 10_000)]

    def encoded(self) -> list[int]:
        return fake_server.tokens(self.turn())

    def turn(self) -> str:
        """The whole turn, its end included."""
        body, choice = self.body, self.body.get("tool_choice", "none")
        prompt = str(body["messages"][-1]["content"])
        thinking = (body.get("chat_template_kwargs") or {}).get("thinking")
        if not body.get("tools"):
            reasons = thinking or self.has("always reasons")
            ends = 20 if self.has("runs on") else 1
            return f"{'Seventeen and so on.</think>' * bool(reasons)}42{'<|im_end|>' * ends}"
        wants = ("Call " in prompt and self.body.get("logit_bias") is None) or not self.has("obeys the model")
        count = 3 if "twice" in prompt else 1
        if (body.get("parallel_tool_calls") is False and not self.has("many calls")) or isinstance(choice, dict):
            count = 1
        if choice == "auto" and body.get("logit_bias") and self.has("free under auto"):
            return "<|tool_calls_section_begin|>" * 8
        if choice == "none":
            leak = "<|tool_calls_section_begin|>" if body.get("logit_bias") and self.has("leaks markers") else ""
            if not self.has("calls under none"):
                return f"Blue scatters.{leak}<|im_end|>"
        elif not wants or (choice == "auto" and "Do not" in prompt):
            return "I would rather not.<|im_end|>"
        first = sum(len(message.get("tool_calls") or ()) for message in body["messages"])
        calls = [self.call(choice, first, number) for number in range(count)]
        return f"<|tool_calls_section_begin|>{''.join(calls)}<|tool_calls_section_end|><|im_end|>"

    def call(self, choice: Any, first: int, number: int) -> str:
        if isinstance(choice, dict):
            listed = self.has("names another") == (choice["function"]["name"] == "book_table")
        else:
            listed = number > 0
        name, arguments = ("list_tables", "{}") if listed else ("book_table", fake_server.GOOD)
        if isinstance(choice, dict) and choice["function"]["name"] not in {"list_tables", "book_table"}:
            name = choice["function"]["name"]
            special = "<|im_middle|>" * (9 if self.has("special tokens in strings") else 0)
            arguments = f'{{"query": "a{special}"}}' if name == "search" else "{}"
        if self.has("invalid arguments"):
            arguments = arguments.replace('"guests": 2', '"guests": 400')
        if self.has("markers in names"):
            name = "a<think>"
        if self.has("undeclared names"):
            name = "cancel_table"
        call_id = f"functions.{name}:{first + number}"
        if self.has("restarts indexes"):
            call_id = f"functions.{name}:{number}"
        if self.has("repeats ids"):
            call_id = f"functions.{name}:{first}"
        return f"<|tool_call_begin|>{call_id}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"

    def parsed(self) -> tuple[str, str, str, list[tuple[str, str, str]]]:
        """``(finish_reason, reasoning, content, calls)``; a stream shows cut calls too."""
        text = fake_server.text_of(self.ids).removesuffix("<|im_end|>")
        reasoning, _, content = text.rpartition("</think>")
        if self.has("reasoning is content"):
            reasoning, content = "", text
        calls: list[tuple[str, str, str]] = []
        for found in _CALL.finditer(content):
            call_id, arguments = found[1], found[2]
            if not found[3] and not self.body.get("stream") and not self.has("hands over pieces"):
                continue
            name = call_id.removeprefix("functions.").rpartition(":")[0]
            if self.has("last part of names"):
                name = name.rpartition(".")[2]
            if self.has("deep arguments") or self.has("many digits"):
                arguments = "[" * 200_000 if self.has("deep arguments") else "1" * 6_000
            if self.has("reformats") and found[3]:
                arguments = json.dumps(json.loads(arguments), ensure_ascii=False)
            calls.append((f"call_{len(calls)}" if self.has("renames ids") else call_id, name, arguments))
        if self.has("loses calls"):
            calls = calls[:1]
        section = content.find("<|tool_calls_section_begin|>")
        if section >= 0 and not self.has("leaks markers"):
            content = content[:section]
        finish = "tool_calls" if calls else "stop"
        if self.cut and not (calls and self.has("claims to have ended")):
            finish = "length"
        return finish, reasoning, content, calls

    def whole(self) -> Any:
        finish, reasoning, content, calls = self.parsed()
        made = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls]
        message = {
            "content": 7 if self.has("wrong types") else content,
            "reasoning": reasoning or None,
            "tool_calls": made,
        }
        ids = None if self.has("no ids") else self.ids
        choice = {"finish_reason": finish, "message": message, "token_ids": ids}
        count = self.body.get("n", 1)
        return {
            "choices": [] if self.has("no choices") else [choice] * count,
            "prompt_token_ids": None if self.has("no ids") else self.prompt_ids,
            "usage": {"completion_tokens": len(self.ids) * count},
        }

    def streamed(self) -> bytes:
        finish, reasoning, content, calls = self.parsed()
        if self.has("streams other text"):
            content = f" {content}"
        if self.has("streams other calls"):
            calls = [(i, n, a.replace("  ", " ")) for i, n, a in calls]
        if self.has("streams another finish"):
            finish = "stop"
        deltas: list[Any] = [{"reasoning": reasoning}, {"content": content}]
        for number, (call_id, name, arguments) in enumerate(calls):
            pieces: list[Any] = [{"id": call_id, "function": {"name": name, "arguments": ""}}]
            pieces += [{"function": {"arguments": arguments[at : at + 7]}} for at in range(0, len(arguments), 7)]
            deltas += [{"tool_calls": [{"index": number} | piece]} for piece in pieces]
        choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
        choices.append({"index": 0, "delta": {}, "finish_reason": finish})
        if not self.has("no ids"):
            choices[0]["token_ids"] = self.ids
        lines = [f"data: {json.dumps({'choices': [choice]})}\n\n" for choice in choices]
        return "".join([*lines, *([] if self.has("no done") else ["data: [DONE]\n\n"])]).encode()
