"""Histories in the forms that clients send, each with its prompt: U|, A| and S| open turns, > ends a header, $ a turn.

``{{«ID→ARGUMENTS»}}`` is a section with a call, and ~ Kimi's default system turn. None is a request that is refused.
"""

from typing import Any

Table = dict[str, tuple[list[Any], str | None]]

GO = {"role": "user", "content": "go"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}
THOUGHT = {"type": "thinking", "thinking": "hm"}
TEXT = {"type": "text", "text": "x"}


def said(content: Any = None, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **fields}


def call(given: Any = "c1", name: Any = "f", arguments: Any = '{"x":1}') -> dict[str, Any]:
    return {"id": given, "type": "function", "function": {"name": name, "arguments": arguments}}


def back(content: Any = "r", given: Any = "c1", **fields: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": given, "content": content, **fields}


def user(content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **fields}


def calling(*calls: Any) -> list[dict[str, Any]]:
    return [GO, said(tool_calls=[*calls]), back()]


CALLED = [GO, said(tool_calls=[call()])]
ASKED = '~U|user>go$A|assistant>{{«functions.f:0→{"x":1}»}}$'
OPEN = "A|assistant>"

ROLES: Table = {
    "developer": ([{"role": "developer", "content": "be"}, GO], "S|system>be$U|user>go$A|assistant>"),
    "developer's parts": ([{"role": "developer", "content": [TEXT]}, GO], "S|system>x$U|user>go$A|assistant>"),
    "developer after system": ([{"role": "system", "content": "a"}, {"role": "developer", "content": "b"}, GO], "S|system>a$S|system>b$U|user>go$A|assistant>"),
    "system in the middle": ([GO, said("x"), {"role": "system", "content": "be"}, GO], "~U|user>go$A|assistant>x$S|system>be$U|user>go$A|assistant>"),
    "Claude Code's header": ([{"role": "system", "content": [{"type": "text", "text": "x-anthropic-billing-header: cch=1"}, TEXT]}, GO], "S|system>x$U|user>go$A|assistant>"),
    "legacy function": ([GO, said(function_call={"name": "f", "arguments": '{"x":1}'}), {"role": "function", "name": "f", "content": "r"}], ASKED + "S|f>## Return of functions.f:0\nr$" + OPEN),
    "legacy function, no call": ([GO, {"role": "function", "name": "f", "content": "r"}], "~U|user>go$A|assistant>{{«functions.f:0→{}»}}$S|f>## Return of functions.f:0\nr$" + OPEN),
    "legacy function, null": ([GO, said(function_call={"name": "f", "arguments": '{"x":1}'}), {"role": "function", "name": "f", "content": None}], ASKED + "S|f>## Return of functions.f:0\n$" + OPEN),
    "legacy function, no name": ([*CALLED, {"role": "function", "content": "r"}], ASKED + "S|tool>## Return of functions.f:0\nr$" + OPEN),
    "legacy call beside calls": ([GO, said(function_call={"name": "g", "arguments": "{}"}, tool_calls=[call()]), back()], ASKED + "S|tool>## Return of functions.f:0\nr$" + OPEN),
    "legacy call, null": ([GO, said("x", function_call=None), GO], "~U|user>go$A|assistant>x$U|user>go$A|assistant>"),
    "ipython": ([*CALLED, {"role": "ipython", "content": "42"}], ASKED + "S|tool>## Return of functions.f:0\n42$" + OPEN),
    "ipython, no call": ([GO, {"role": "ipython", "content": "42"}], "~U|user>go$S|ipython>42$A|assistant>"),
    "another role": ([GO, {"role": "critic", "content": "no"}], "~U|user>go$S|critic>no$A|assistant>"),
    "a hostile role": ([{"role": "<|im_end|>", "content": "x"}], "~S|<\u2060|im_end|>>x$A|assistant>"),
    "no role": ([{"content": "x"}], None),
    "a number as role": ([{"role": 5, "content": "x"}], None),
    "name of a user": ([user("x", name="bob")], "~U|bob>x$A|assistant>"),
    "name of an assistant": ([GO, said("x", name="kimi"), GO], "~U|user>go$A|kimi>x$U|user>go$A|assistant>"),
    "name of a tool": ([*CALLED, back(name="f")], ASKED + "S|f>## Return of functions.f:0\nr$" + OPEN),
    "a hostile name": ([user("x", name="<|im_end|>")], "~U|<\u2060|im_end|>>x$A|assistant>"),
    "name, null": ([user("x", name=None)], "~U|user>x$A|assistant>"),
    "name, a number": ([user("x", name=5)], None),
    "fields of the client": ([user("x", id="m", timestamp=5, metadata={"a": 1})], "~U|user>x$A|assistant>"),
    "partial": ([GO, said("So", partial=True)], "~U|user>go$A|assistant>So"),
    "partial with a name": ([GO, said("", name="Dr. Kelsier", partial=True)], "~U|user>go$A|Dr. Kelsier>"),
    "partial, null": ([GO, said(partial=True)], "~U|user>go$A|assistant>"),
    "partial, blank at its end": ([GO, said("So ", partial=True)], "~U|user>go$A|assistant>So "),
    "partial parts": ([GO, said([TEXT], partial=True)], "~U|user>go$A|assistant>x"),
    "partial after a call": ([*CALLED, back(), said("So", partial=True)], ASKED + "S|tool>## Return of functions.f:0\nr$A|assistant>So"),
    "partial with calls": ([GO, said("", partial=True, tool_calls=[call()])], ASKED + OPEN),
    "partial, not the last": ([GO, said("So", partial=True), GO], "~U|user>go$A|assistant>So$U|user>go$A|assistant>"),
    "partial: false": ([GO, said("So", partial=False)], "~U|user>go$A|assistant>So$A|assistant>"),
    "last from the assistant": ([GO, said("So")], "~U|user>go$A|assistant>So$A|assistant>"),
}  # fmt: skip

CONTENTS: Table = {
    "null": ([user(None)], "~U|user>$A|assistant>"),
    "absent": ([{"role": "user"}], "~U|user>$A|assistant>"),
    "no parts": ([user([])], "~U|user>$A|assistant>"),
    "an empty string part": ([user([""])], "~U|user>$A|assistant>"),
    "strings": ([user(["a", "b"])], "~U|user>ab$A|assistant>"),
    "text parts": ([user([TEXT, TEXT])], "~U|user>xx$A|assistant>"),
    "a part with cache_control": ([user([TEXT | {"cache_control": {"type": "ephemeral"}}])], "~U|user>x$A|assistant>"),
    "a part without type": ([user([{"text": "x"}])], "~U|user>x$A|assistant>"),
    "a part without text": ([user([{"type": "text", "text": None}])], "~U|user>$A|assistant>"),
    "input_text": ([user([{"type": "input_text", "text": "x"}])], "~U|user>x$A|assistant>"),
    "thinking of a user": ([user([THOUGHT, TEXT])], "~U|user>hmx$A|assistant>"),
    "unknown part": ([user([{"type": "smell"}])], None),
    "file": ([user([{"type": "input_file", "file_id": "x"}])], None),
    "a number": ([user(5)], None),
    "answer, null": ([GO, said(), GO], "~U|user>go$A|assistant>$U|user>go$A|assistant>"),
    "answer, absent": ([GO, {"role": "assistant"}, GO], "~U|user>go$A|assistant>$U|user>go$A|assistant>"),
    "answer, no parts": ([GO, said([]), GO], "~U|user>go$A|assistant>$U|user>go$A|assistant>"),
    "answer, strings": ([GO, said(["a", "b"]), GO], "~U|user>go$A|assistant>ab$U|user>go$A|assistant>"),
    "answer, output_text": ([GO, said([{"type": "output_text", "text": "x", "annotations": []}]), GO], "~U|user>go$A|assistant>x$U|user>go$A|assistant>"),
    "answer, refusal part": ([GO, said([{"type": "refusal", "refusal": "no"}]), GO], "~U|user>go$A|assistant>no$U|user>go$A|assistant>"),
    "answer, refusal": ([GO, said(refusal="no"), GO], "~U|user>go$A|assistant>no$U|user>go$A|assistant>"),
    "answer, refusal null": ([GO, said("x", refusal=None), GO], "~U|user>go$A|assistant>x$U|user>go$A|assistant>"),
    "answer, audio": ([GO, said(audio={"id": "a"}), GO], "~U|user>go$A|assistant>$U|user>go$A|assistant>"),
    "answer, no calls": ([GO, said("x", tool_calls=[]), GO], "~U|user>go$A|assistant>x$U|user>go$A|assistant>"),
    "answer, calls null": ([GO, said("x", tool_calls=None), GO], "~U|user>go$A|assistant>x$U|user>go$A|assistant>"),
    "calls of a user": ([user("x", tool_calls=[call()])], "~U|user>x$A|assistant>"),
    "result, null": ([*CALLED, back(None)], ASKED + "S|tool>## Return of functions.f:0\n$" + OPEN),
    "result, absent": ([*CALLED, {"role": "tool", "tool_call_id": "c1"}], ASKED + "S|tool>## Return of functions.f:0\n$" + OPEN),
    "result, no parts": ([*CALLED, back([])], ASKED + "S|tool>## Return of functions.f:0\n$" + OPEN),
    "result, strings": ([*CALLED, back(["a", "b"])], ASKED + "S|tool>## Return of functions.f:0\na\nb$" + OPEN),
    "result, text parts": ([*CALLED, back([TEXT, TEXT])], ASKED + "S|tool>## Return of functions.f:0\nx\nx$" + OPEN),
    "result, input_text": ([*CALLED, back([{"type": "input_text", "text": "x"}])], ASKED + "S|tool>## Return of functions.f:0\nx$" + OPEN),
    "result, object": ([*CALLED, back({"a": 1})], ASKED + 'S|tool>## Return of functions.f:0\n{"a": 1}$' + OPEN),
    "result, objects": ([*CALLED, back([{"a": 1}, {"a": 2}])], ASKED + 'S|tool>## Return of functions.f:0\n[{"a": 1}, {"a": 2}]$' + OPEN),
    "result, numbers": ([*CALLED, back([1, 2])], ASKED + "S|tool>## Return of functions.f:0\n[1, 2]$" + OPEN),
    "result, number": ([*CALLED, back(5)], ASKED + "S|tool>## Return of functions.f:0\n5$" + OPEN),
    "result, MCP's parts": ([*CALLED, back([TEXT, {"type": "resource_link", "uri": "a"}])], ASKED + 'S|tool>## Return of functions.f:0\nx\n{"type": "resource_link", "uri": "a"}$' + OPEN),
    "result, MCP's image": ([*CALLED, back([TEXT, {"type": "image", "data": "aWs=", "mimeType": "image/png"}])], ASKED + "S|tool>## Return of functions.f:0\nx\n[image: image/png]$" + OPEN),
    "result, MCP's audio alone": ([*CALLED, back([{"type": "audio", "data": "aWs=", "mimeType": "audio/wav", "annotations": {}, "_meta": {}}])], ASKED + "S|tool>## Return of functions.f:0\n[audio: audio/wav]$" + OPEN),
    "result, MCP's image without a type": ([*CALLED, back([{"type": "image", "data": "", "mimeType": 5}])], ASKED + "S|tool>## Return of functions.f:0\n[image]$" + OPEN),
    "result, MCP's image with a long type": ([*CALLED, back([{"type": "image", "data": "", "mimeType": "a" * 9000}])], ASKED + "S|tool>## Return of functions.f:0\n[image]$" + OPEN),
    "result, MCP's image with a hostile type": ([*CALLED, back([{"type": "image", "data": "", "mimeType": "<|im_end|>"}])], ASKED + "S|tool>## Return of functions.f:0\n[image: <\u2060|im_end|>]$" + OPEN),
    "MCP's image of a user": ([user([{"type": "image", "data": "aWs=", "mimeType": "image/png"}])], None),
    "result, tool reference": ([*CALLED, back([{"type": "tool_reference", "name": "g"}])], ASKED + "S|tool>## Return of functions.f:0\ng$" + OPEN),
}  # fmt: skip

CALLS: Table = {
    "beside empty text": ([GO, said("", tool_calls=[call()])], ASKED + OPEN),
    "beside absent text": ([GO, {"role": "assistant", "tool_calls": [call()]}], ASKED + OPEN),
    "without a result": ([*CALLED, GO], ASKED + "U|user>go$A|assistant>"),
    "arguments, empty": (calling(call(arguments="")), "~U|user>go$A|assistant>{{«functions.f:0→{}»}}$S|tool>## Return of functions.f:0\nr$" + OPEN),
    "arguments, null": (calling(call(arguments=None)), "~U|user>go$A|assistant>{{«functions.f:0→{}»}}$S|tool>## Return of functions.f:0\nr$" + OPEN),
    "arguments, object": (calling(call(arguments={"x": 1})), '~U|user>go$A|assistant>{{«functions.f:0→{"x": 1}»}}$S|tool>## Return of functions.f:0\nr$' + OPEN),
    "arguments, cut off": (calling(call(arguments='{"x":')), '~U|user>go$A|assistant>{{«functions.f:0→{"x":»}}$S|tool>## Return of functions.f:0\nr$' + OPEN),
    "id, null": (calling(call(None)), ASKED + "S|tool>## Return of functions.f:0\nr$" + OPEN),
    "id, a number": ([GO, said(tool_calls=[call(7)]), back(given=7)], ASKED + "S|tool>## Return of functions.f:0\nr$" + OPEN),
    "type, null": (calling(call() | {"type": None}), ASKED + "S|tool>## Return of functions.f:0\nr$" + OPEN),
    "with an index": (calling(call() | {"index": 0}), ASKED + "S|tool>## Return of functions.f:0\nr$" + OPEN),
    "without a function": (calling({"id": "c1", "type": "tool_call", "name": "f", "args": {"x": 1}}), '~U|user>go$A|assistant>{{«functions.f:0→{"x": 1}»}}$S|tool>## Return of functions.f:0\nr$' + OPEN),
    "custom": (calling({"id": "c1", "type": "custom", "custom": {"name": "f", "input": 'a"b'}}), '~U|user>go$A|assistant>{{«functions.f:0→{"input": "a\\"b"}»}}$S|tool>## Return of functions.f:0\nr$' + OPEN),
    "no name": (calling(call(name="")), '~U|user>go$A|assistant>{{«functions.unknown:0→{"x":1}»}}$S|tool>## Return of functions.unknown:0\nr$' + OPEN),
    "a hostile name": (calling(call(name="<|im_end|>")), '~U|user>go$A|assistant>{{«functions.<\u2060|im_end|>:0→{"x":1}»}}$S|tool>## Return of functions.<\u2060|im_end|>:0\nr$' + OPEN),
    "an array": (calling([]), None),
    "results in another order": ([GO, said(tool_calls=[call("a"), call("b", "g")]), back("G", "b"), back("F", "a")], '~U|user>go$A|assistant>{{«functions.f:0→{"x":1}»«functions.g:1→{"x":1}»}}$S|tool>## Return of functions.g:1\nG$S|tool>## Return of functions.f:0\nF$' + OPEN),
    "one id twice": ([GO, said(tool_calls=[call("a"), call("a", "g")]), back("F", "a"), back("G", "a")], '~U|user>go$A|assistant>{{«functions.f:0→{"x":1}»«functions.g:1→{"x":1}»}}$S|tool>## Return of functions.f:0\nF$S|tool>## Return of functions.g:1\nG$' + OPEN),
    "result without id": ([*CALLED, {"role": "tool", "content": "r"}], ASKED + "S|tool>## Return of functions.f:0\nr$" + OPEN),
    "result, id null": ([*CALLED, back(given=None)], ASKED + "S|tool>## Return of functions.f:0\nr$" + OPEN),
    "result with another id": ([*CALLED, back(given="z")], ASKED + "S|tool>## Return of functions.f:0\nr$" + OPEN),
    "result before its call": ([back(), said(tool_calls=[call()])], '~A|assistant>{{«functions.unknown:0→{}»}}$S|tool>## Return of functions.unknown:0\nr$A|assistant>{{«functions.f:1→{"x":1}»}}$' + OPEN),
}  # fmt: skip

ANSWERED = '{{«functions.f:0→{"x":1}»}}$S|tool>## Return of functions.f:0\nr$A|assistant><think>'


def thinking(content: Any = None, **fields: Any) -> list[Any]:
    return [GO, said(content, tool_calls=[call()], **fields), back()]


# With the template of K2.5, which shows reasoning.
REASONING: Table = {
    name: (history, "U|user>go$A|assistant><think>hm</think>" + ANSWERED)
    for name, history in {
        "reasoning_content": thinking(reasoning_content="hm"),
        "reasoning": thinking(reasoning="hm"),
        "reasoning, parts": thinking(reasoning=[{"type": "text", "text": "hm"}]),
        "reasoning, null": thinking(reasoning=None, reasoning_content="hm"),
        "reasoning_details": thinking(reasoning_details=[{"type": "reasoning.text", "text": "hm"}]),
        "thinking_blocks": thinking(thinking_blocks=[THOUGHT]),
        "thinking": thinking(thinking="hm"),
        "part of type thinking": thinking([THOUGHT]),
        "part of type thinking, an array": thinking([{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]),
        "part of type reasoning": thinking([{"type": "reasoning", "text": "hm"}]),
        "part of type reasoning, LangChain's": thinking([{"type": "reasoning", "reasoning": "hm"}]),
        "part of type reasoning_text": thinking([{"type": "reasoning_text", "text": "hm"}]),
        "part beside the field": thinking([THOUGHT], reasoning="hm"),
        "part beside an encrypted one": thinking([THOUGHT, {"type": "redacted_thinking", "data": "x"}]),
    }.items()
} | {
    "reasoning, an object": (thinking(reasoning={"a": 1}), "U|user>go$A|assistant><think></think>" + ANSWERED),
    "part before text": (thinking([THOUGHT, TEXT]), "U|user>go$A|assistant><think>hm</think>x" + ANSWERED),
    "partial": ([GO, said("So", partial=True)], "U|user>go$A|assistant><think></think>So"),
}  # fmt: skip

FC: dict[str, Any] = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"x":1}'}
OUT: dict[str, Any] = {"type": "function_call_output", "call_id": "c1", "output": "r"}
RESULT = ASKED + "S|tool>## Return of functions.f:0\n{}$" + OPEN
MESSAGE = {"type": "message", "role": "assistant"}


def reasoned(**fields: Any) -> dict[str, Any]:
    return {"type": "reasoning", "id": "rs", "summary": [], **fields}


def thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning_text", "text": text}


def output(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text}


# Items of /v1/responses, with the template of K2-Instruct.
ITEMS: Table = {
    "a call and its output": ([GO, FC, OUT], RESULT.replace("{}", "r")),
    "output, parts": ([GO, FC, OUT | {"output": [{"type": "input_text", "text": text} for text in "ab"]}], RESULT.replace("{}", "a\nb")),
    "output, object": ([GO, FC, OUT | {"output": {"a": 1}}], RESULT.replace("{}", '{"a": 1}')),
    "output, strings": ([GO, FC, OUT | {"output": ["a", "b"]}], RESULT.replace("{}", "a\nb")),
    "output, none": ([GO, FC, OUT | {"output": []}], RESULT.replace("{}", "")),
    "output, null": ([GO, FC, OUT | {"output": None}], RESULT.replace("{}", "")),
    "output, file": ([GO, FC, OUT | {"output": [{"type": "input_file", "file_id": "x"}]}], None),
    "arguments, object": ([GO, FC | {"arguments": {"x": 1}}, OUT], RESULT.replace("{}", "r").replace('{"x":1}', '{"x": 1}')),
    "a namespace": ([GO, FC | {"namespace": "ns"}, OUT], RESULT.replace("{}", "r").replace("functions.f", "functions.ns__f")),
    "a custom call": ([GO, {"type": "custom_tool_call", "call_id": "c1", "name": "f", "input": "raw"}, {"type": "custom_tool_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "r"}]}], RESULT.replace("{}", "r").replace('{"x":1}', '{"input": "raw"}')),
    "a local shell": ([GO, {"type": "local_shell_call", "id": "a", "call_id": "c", "status": "completed", "action": {"type": "exec", "command": ["ls"]}}, {"type": "local_shell_call_output", "id": "c", "output": "r"}], RESULT.replace("{}", "r").replace("functions.f", "functions.local_shell").replace('{"x":1}', '{"type": "exec", "command": ["ls"]}')),
    "several texts": ([GO, MESSAGE | {"content": [output("x"), output("y")]}, GO], "~U|user>go$A|assistant>xy$U|user>go$A|assistant>"),
    "no text": ([GO, MESSAGE | {"content": []}, GO], "~U|user>go$A|assistant>$U|user>go$A|assistant>"),
    "a refusal": ([GO, MESSAGE | {"content": [{"type": "refusal", "refusal": "no"}]}, GO], "~U|user>go$A|assistant>no$U|user>go$A|assistant>"),
    "an untyped message": ([GO, {"role": "assistant", "content": [output("x")]}, GO], "~U|user>go$A|assistant>x$U|user>go$A|assistant>"),
    "a user's texts": ([{"role": "user", "content": [{"type": "input_text", "text": "x"}, {"type": "input_text", "text": "y"}]}], "~U|user>xy$A|assistant>"),
    "a chat's text": ([user([TEXT])], "~U|user>x$A|assistant>"),
    "a chat's calls": ([GO, said("x", tool_calls=[call()]), back()], RESULT.replace("{}", "r").replace("{{", "x{{")),
    "developer": ([{"role": "developer", "content": [{"type": "input_text", "text": "be"}]}, GO], "S|system>be$U|user>go$A|assistant>"),
    "encrypted reasoning": ([GO, reasoned(encrypted_content="x"), FC, OUT], RESULT.replace("{}", "r")),
    "a reference": ([GO, {"type": "item_reference", "id": "x"}], None),
    "a web search": ([GO, {"type": "web_search_call", "id": "a", "status": "completed", "action": {"type": "search", "query": "q"}}], None),
    "unknown": ([GO, {"type": "smell"}], None),
}  # fmt: skip

# With the template of K2.5.
REASONING_ITEMS: Table = {
    name: ([GO, item, FC, OUT], "U|user>go$A|assistant><think>hm</think>" + ANSWERED)
    for name, item in {
        "content": reasoned(content=[thought("hm")]),
        "several parts": reasoned(content=[thought("h"), thought("m")]),
        "summary": reasoned(summary=[{"type": "summary_text", "text": "hm"}]),
        "several summaries": reasoned(summary=[{"type": "summary_text", "text": text} for text in "hm"]),
        "encrypted too": reasoned(content=[thought("hm")], encrypted_content="x"),
    }.items()
}


def blocks(*given: Any) -> list[Any]:
    asked = {"type": "tool_use", "id": "c1", "name": "f", "input": {"x": 1}}
    return [GO, said([*given, asked]), user([{"type": "tool_result", "tool_use_id": "c1", "content": "r"}])]


def answered(content: Any, **fields: Any) -> list[Any]:
    return [*blocks()[:2], user([{"type": "tool_result", "tool_use_id": "c1", "content": content, **fields}])]


# Blocks of /v1/messages, with the template of K2.5.
BLOCKS: Table = {
    name: (given, "U|user>go$A|assistant>" + prompt.replace('{"x":1}', '{"x": 1}'))
    for name, (given, prompt) in {
        "thinking": (blocks(THOUGHT | {"signature": "s"}), "<think>hm</think>" + ANSWERED),
        "redacted thinking": (blocks({"type": "redacted_thinking", "data": "x"}), "<think></think>" + ANSWERED),
        "last from the assistant": ([GO, said("So")], "<think></think>So$A|assistant><think>"),
        "text": (blocks(TEXT, TEXT), "<think></think>xx" + ANSWERED),
        "result, parts": (answered([TEXT, TEXT]), "<think></think>" + ANSWERED.replace("\nr$", "\nx\nx$")),
        "result, empty": (answered([]), "<think></think>" + ANSWERED.replace("\nr$", "\n$")),
        "result, null": (answered(None), "<think></think>" + ANSWERED.replace("\nr$", "\n$")),
        "result, an error": (answered("no", is_error=True), "<think></think>" + ANSWERED.replace("\nr$", "\nno$")),
    }.items()
}
