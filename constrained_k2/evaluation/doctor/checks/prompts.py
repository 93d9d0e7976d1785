"""Checks of prompts: templates, ids of the history, special tokens in text, declared tools."""

import re
from collections import Counter
from typing import Any

from constrained_k2.evaluation.doctor.findings import Finding, fault, ok
from constrained_k2.evaluation.doctor.prompt import Prompt, declaration, ids_in, printed_list, results, undue_keys
from constrained_k2.evaluation.doctor.requests import BOOK, TOOLS, TRICKY, history, tool, user
from constrained_k2.evaluation.doctor.target import NEWER_TEMPLATE, Target
from constrained_k2.explain.view import printable
from constrained_k2.formats.kimi_k2 import ASSISTANT, GENERATION_PROMPT, MIDDLE, SECTION_BEGIN, THINK_BEGIN, THINK_END

_FIRST, _SECOND = _RIGHT = ["functions.list_tables:0", "functions.list_tables:1"]
_FOREIGN = (("call_8Qz1", "chatcmpl-tool-0a1b"), ("list_tables:0", "functions_list_tables_1"), (_FIRST, _FIRST))
_LOCATIONS = ("system", "user", "tool", "tool description", "arguments", "escaped arguments")


async def generation_prompt(target: Target) -> Finding:
    """The prompt ends with the header of the assistant's turn."""
    return judge_generation_prompt(await target.prompt({"messages": [user("Hello.")]}))


def judge_generation_prompt(prompt: Prompt) -> Finding:
    """The finding for one prompt, which may end with an opened or closed reasoning."""
    pieces = list(prompt)
    while pieces and pieces[-1] in {(THINK_BEGIN, True), (THINK_END, True)}:
        del pieces[-1]
    if pieces[-3:] == [(ASSISTANT, True), ("assistant", False), (MIDDLE, True)]:
        return ok(f"the prompt ends with {GENERATION_PROMPT}")
    end = "".join(piece.text for piece in prompt[-4:])
    return fault(f"the prompt ends with {printable(end[-80:])!r}: the model goes on as the user", NEWER_TEMPLATE)


async def empty_content(target: Target) -> Finding:
    """Content that is empty, null or a list of parts is rendered as its text."""
    parts = [{"type": "text", "text": "2 tables"}]
    dialogs = (
        ("content ''", history(_FIRST)),
        ("content null", history(_FIRST, content=None)),
        ("a list of parts", [*history(_FIRST, result=parts)[:-1], user(parts)]),
    )
    for name, messages in dialogs:
        finding = judge_content(await target.prompt({"messages": messages, "tools": TOOLS}), name)
        if finding.verdict != "ok":
            return finding
    return ok("'', null and lists of parts are rendered as their text")


def judge_content(prompt: Prompt, name: str) -> Finding:
    """The finding for one prompt whose assistant's turns have calls and no text; ``name`` describes the content."""
    if listed := printed_list(prompt):
        return fault(f"{name} is printed as a Python list: {printable(listed)}", NEWER_TEMPLATE)
    if text := next(filter(str.strip, _text_before_calls(prompt)), ""):
        return fault(f"{name} becomes {printable(text, 60)!r} before the calls", NEWER_TEMPLATE)
    return ok(f"{name} is rendered as its text")


def _text_before_calls(prompt: Prompt) -> list[str]:
    """For every section of calls, the text between it and its turn's header or the end of its reasoning."""
    found, text = [], ""
    for piece in prompt:
        if piece.special and piece.text == SECTION_BEGIN:
            found.append(text)
        if piece.special and piece.text in {MIDDLE, THINK_END}:
            text = ""
        elif not piece.special:
            text += piece.text
    return found


async def tool_results(target: Target) -> Finding:
    """Results begin directly below their headline."""
    return judge_results(await target.prompt({"messages": history(_FIRST), "tools": TOOLS}))


def judge_results(prompt: Prompt) -> Finding:
    """The finding for one prompt with results."""
    if any(found["blanks"] for found in results(prompt)):
        return fault("results are indented below '## Return of': an old chat template", NEWER_TEMPLATE)
    return ok("results begin directly below '## Return of ID'")


async def ids_kept(target: Target) -> Finding:
    """Right ids in the history are rendered unchanged."""
    ids = await _rendered(target, _FIRST, _SECOND)
    if ids == (_RIGHT, _RIGHT):
        return ok("right ids are rendered unchanged")
    return fault(f"right ids become {_joined(ids)}", NEWER_TEMPLATE)


async def ids_repaired(target: Target) -> Finding:
    """Other ids in the history are repaired; without that the model cannot see which function was called."""
    for sent in _FOREIGN:
        ids = await _rendered(target, *sent)
        if ids != (_RIGHT, _RIGHT):
            seen = f"the ids {', '.join(sent)} reach the model as {_joined(ids)}: they hide the function's name, and "
            remedy = f"{target.repairing}; or have the client return the ids it received, {' and '.join(_RIGHT)} here"
            return fault(f"{seen}teach the model a wrong form", remedy)
    return ok("other ids become functions.NAME:INDEX, in calls and results")


async def _rendered(target: Target, first: str, second: str) -> tuple[list[str], list[str]]:
    messages = [*history(first)[:-1], *history(second)]
    return ids_in(await target.prompt({"messages": messages, "tools": TOOLS}))


def _joined(ids: tuple[list[str], list[str]]) -> str:
    calls, results = (", ".join(printable(call_id, 60) for call_id in part[:4]) or "nothing" for part in ids)
    return calls if calls == results else f"{calls} for the calls and {results} for the results"


async def special_tokens(target: Target) -> Finding:
    """The text of a special token stays text, wherever a client puts it: it adds no special ids to the prompt."""
    texts = target.special_texts
    expected = await _special_ids(target, "")
    leaked = {location: await _special_ids(target, location) - expected for location in _LOCATIONS}
    found = [f"{len(ids)} of {len(texts)} in {location} text" for location, ids in leaked.items() if ids]
    if not found:
        return ok(f"the text of {len(texts)} special tokens stays text in {', '.join(_LOCATIONS)}")
    seen = f"the text of special tokens becomes special tokens: {', '.join(found)}. A web page that a tool reads can "
    remedy = target.rendering if target.uses_tags else target.repairing
    return fault(f"{seen}open a system turn", f"{remedy}; or remove such text in the client")


async def _special_ids(target: Target, location: str) -> Counter[int]:
    """Count the special ids in the prompt of a request with the text of all special tokens in one location."""
    hostile = f"a {' b '.join(target.special_texts)} c"
    text = dict.fromkeys(_LOCATIONS, "no marker here") | {location: hostile}
    if location == "escaped arguments":  # a server that decodes and re-encodes the arguments unescapes them
        text[location] = "".join(f"\\u{ord(letter):04x}" if letter in "<[" else letter for letter in hostile)
    dialog = history(_FIRST, result=text["tool"])[:-1]
    arguments = f'{{"a": "{text["arguments"]}", "b": "{text["escaped arguments"]}"}}'
    dialog[1]["tool_calls"][0]["function"]["arguments"] = arguments
    messages: list[dict[str, Any]] = [{"role": "system", "content": text["system"]}, *dialog, user(text["user"])]
    tools = [BOOK, tool("list_tables", text["tool description"])]
    ids = await target.prompt_ids({"messages": messages, "tools": tools})
    return Counter(token_id for token_id in ids if target.is_special(token_id))


async def declared_tools(target: Target) -> Finding:
    """Keys for the server, such as ``strict``, stay out of the prompt."""
    tools = [tool("book_table", "Book a table.", TRICKY, strict=True)]
    finding = judge_declaration(await target.prompt({"messages": [user("Hello.")], "tools": tools}))
    if finding.verdict == "warning":
        return Finding("warning", finding.seen, f"{target.repairing}; or remove such keys in the client")
    return finding


def judge_declaration(prompt: Prompt) -> Finding:
    """The finding for one prompt of a request with a tool; a warning lacks its remedy."""
    declared = declaration(prompt)
    if declared is None:
        return fault("the prompt declares no tools, though the request has one", NEWER_TEMPLATE)
    if re.match(r"\s*# Tools\s*\[", declared):
        return fault("tools are declared below a headline, '# Tools': an old chat template", NEWER_TEMPLATE)
    if keys := undue_keys(declared):
        names = ", ".join(printable(key, 40) for key in keys[:8])
        return Finding("warning", f"tools are declared with keys that Kimi was not trained on: {names}")
    return ok("tools are declared by type, name, description and parameters only")
