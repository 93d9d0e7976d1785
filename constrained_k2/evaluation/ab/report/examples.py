"""Wrong answers as the reports show them. Their text is untrusted and is escaped here."""

import json
import re
from collections.abc import Iterator
from typing import Any

from markupsafe import Markup, escape

from constrained_k2.evaluation.ab.results import Example, Results
from constrained_k2.evaluation.answer import Record
from constrained_k2.evaluation.judge import FORM, KINDS, judge
from constrained_k2.evaluation.sample import Sample
from constrained_k2.explain.view import printable, visible
from constrained_k2.formats.base import WireFormat
from constrained_k2.prompts.xtml.turn import turn_text
from constrained_k2.request.spec import ToolCall

_SPAN = '<span class="marker {}">{}</span>'
_MAX_TEXT = 4000  # characters
_MAX_LINE = 160  # characters
_MAX_MESSAGES = 4
_MARKER = re.compile(r"&lt;\|[A-Za-z0-9_]{1,60}\|&gt;|&lt;/?think&gt;")
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|#~&])")


def as_html(text: object) -> Markup:
    """Escape text for HTML, between tags or in a quoted attribute; markup stays as it is."""
    return text if isinstance(text, Markup) else escape(visible(str(text), "\n"))


def as_markdown(text: object) -> str:
    """Escape text for one line of Markdown; markup stays as it is."""
    return text if isinstance(text, Markup) else _MARKDOWN.sub(r"\\\1", visible(" ".join(str(text).split())))


def examples(results: Results) -> Iterator[dict[str, Any]]:
    """Yield the variables of the page's template for each example."""
    for arm, result in results.arms.items():
        for kind, found in result.examples.items():
            for example in found:
                title = example.judgement.problems[0].partition(": ")[2] or KINDS[kind]
                shared = {"arm": arm, "kind": kind, "sample": example.sample, "record": example.record}
                sections = _sections(example, results.directory.wire_format)
                yield shared | {"title": title[:_MAX_LINE], "sections": sections}


def shown(text: str) -> Markup:
    """Escape text for HTML, cut the middle of long texts, colour the wire format's markers."""
    if len(text) > _MAX_TEXT:
        half = _MAX_TEXT // 2
        text = f"{text[:half]}\n[… {len(text) - _MAX_TEXT:,} characters …]\n{text[-half:]}"
    kinds = {True: "call", False: "turn"}
    spans = _MARKER.sub(lambda found: _SPAN.format(kinds["tool_call" in found[0]], found[0]), as_html(text))
    return Markup(spans)  # noqa: S704 - escaped before


def _sections(example: Example, wire_format: WireFormat) -> list[tuple[str, str]]:
    body, record = example.sample.body, example.record
    calls = [f"{call_id or '(no id)'}  {name}  {arguments}" for call_id, name, arguments in record.calls]
    return [
        ("End of the prompt", record.prompt_tail or _messages(body["messages"])),
        ("Tools", _tools(body)),
        (
            "Raw answer" if record.raw else "Answer, rebuilt from its parsed parts",
            record.raw or _rebuilt(record, wire_format),
        ),
        ("Parsed calls", "\n".join(calls) or "none"),
        ("Problems", "\n".join(example.judgement.problems)),
    ]


def _messages(messages: list[Any]) -> str:
    lines = [f"[{len(messages) - _MAX_MESSAGES} earlier messages]"] if len(messages) > _MAX_MESSAGES else []
    for message in messages[-_MAX_MESSAGES:]:
        content = message.get("content")
        lines.append(f"{message['role']}: {content if isinstance(content, str) else json.dumps(content)}")
        lines += [f"  calls {json.dumps(call, ensure_ascii=False)}" for call in message.get("tool_calls") or ()]
    return "\n".join(lines)


def _tools(body: dict[str, Any]) -> str:
    functions = [tool["function"] for tool in body.get("tools") or ()]
    schemas = [f"{each['name']}: {json.dumps(each.get('parameters'), ensure_ascii=False)}" for each in functions]
    return "\n".join([f"tool_choice: {json.dumps(body.get('tool_choice', 'auto'))}", *schemas])


def _rebuilt(record: Record, wire_format: WireFormat) -> str:
    if not (record.reasoning or record.content or record.calls):
        return f"nothing: {record.error}"
    if wire_format.argument_encoding == "xtml":
        made = [ToolCall(name, 0, arguments) for _, name, arguments in record.calls]
        return turn_text(made, response=record.content, reasoning=record.reasoning or None)
    marker = wire_format.marker_texts
    text = f"{marker['think_begin']}{record.reasoning}{marker['think_end']}" if record.reasoning else ""
    text += record.content
    if record.calls:
        calls = "".join(
            f"{marker['call_begin']}{call_id or name}{marker['argument_begin']}{arguments}{marker['call_end']}"
            for call_id, name, arguments in record.calls
        )
        text += f"{marker['section_begin']}{calls}{marker['section_end']}"
    return text


def contrast(results: Results) -> list[str]:
    """Lines that show a request that the baseline answered malformed and the constrained arm answered right."""
    constrained = next((name for name, result in results.arms.items() if result.arm.is_constrained), None)
    if constrained is None:
        return []
    malformed, directory = results.arms[results.baseline].examples, results.directory
    for sample, record, _ in (example for kind in sorted(malformed.keys() & FORM) for example in malformed[kind]):
        found = {name: directory.record(name, record.key, record.repetition) for name in results.arms}
        answers = {name: answer for name, answer in found.items() if answer is not None}
        answer = answers.get(constrained)
        if answer is not None and judge(sample, answer, directory.wire_format).counts.right:
            return list(_lines(sample, answers, directory.wire_format))
    return []


def _lines(sample: Sample, answers: dict[str, Record], wire_format: WireFormat) -> Iterator[str]:
    yield f"request {sample.number}: {_short(sample.body['messages'][-1].get('content'))}"
    for name, record in answers.items():
        problems = judge(sample, record, wire_format).problems
        yield f"{name}: {_short(problems[0].partition(': ')[2] or problems[0]) if problems else 'right'}"
        if record.content:
            yield f"  says  {_short(record.content)}"
        for call_id, _, arguments in record.calls:
            yield f"  calls {_short(call_id)} {_short(arguments)}"


def _short(text: Any) -> str:
    return printable(str(text), _MAX_LINE)
