"""Answers that are not right, to be looked at: prompt, what was written, what is wrong with it."""

import json
import re
from collections.abc import Iterator
from typing import Any

from constrained_k2.evaluation.ab.judge import KINDS
from constrained_k2.evaluation.ab.report.text import as_html
from constrained_k2.evaluation.ab.results import Example, Results

_LONGEST = 4000  # characters of one text
_MESSAGES = 4
_MARKER = re.compile(r"&lt;\|[A-Za-z0-9_]{1,60}\|&gt;|&lt;/?think&gt;")


def examples(results: Results) -> Iterator[str]:
    """Each example as one ``<details>``, with its arm and kind for the page's filters."""
    for arm, result in results.arms.items():
        for kind, found in result.examples.items():
            for example in found:
                yield _example(arm, kind, example)


def shown(text: str) -> str:
    """Text of a model, a server or a sample as HTML: escaped, its middle left out if it is long, markers coloured."""
    if len(text) > _LONGEST:
        half = _LONGEST // 2
        text = f"{text[:half]}\n[… {len(text) - _LONGEST:,} characters …]\n{text[-half:]}"
    return _MARKER.sub(_colored, as_html(text))


def _colored(found: re.Match[str]) -> str:
    kind = "call" if "tool_call" in found[0] else "turn"
    return f'<span class="marker {kind}">{found[0]}</span>'


def _example(arm: str, kind: str, example: Example) -> str:
    sample, record, judgement = example.sample, example.record, example.judgement
    title = judgement.problems[0].partition(": ")[2] or KINDS[kind]
    sections = [
        ("Prompt, its end", record.prompt_tail or _messages(sample.body["messages"])),
        ("Tools", _tools(sample.body)),
        ("Written" if record.raw else "Written, put together from the parsed answer", record.raw or _written(example)),
        ("Calls as parsed", "\n".join(f"{i or '(no id)'}  {name}  {text}" for i, name, text in record.calls) or "none"),
        ("Wrong", "\n".join(judgement.problems)),
    ]
    body = "".join(f"<h4>{as_html(name)}</h4><pre>{shown(text)}</pre>" for name, text in sections if text)
    facts = f"sample {sample.number}, {sample.category}, repetition {record.repetition}, {sample.choice}"
    facts += f", finish_reason {record.finish_reason or 'none'}, {record.attempts} attempt(s)"
    return (
        f'<details class="example" data-arm="{as_html(arm)}" data-kind="{as_html(kind)}"><summary>'
        f'<span class="badge">{as_html(kind)}</span> <b>{as_html(arm)}</b> #{sample.number} '
        f"{shown(title[:160])}</summary>"
        f"<p>{shown(facts)}</p>{body}</details>"
    )


def _messages(messages: list[Any]) -> str:
    """The last messages, as a reader takes them in."""
    lines = [f"[{len(messages) - _MESSAGES} earlier messages]"] if len(messages) > _MESSAGES else []
    for message in messages[-_MESSAGES:]:
        content = message.get("content")
        lines.append(f"{message['role']}: {content if isinstance(content, str) else json.dumps(content)}")
        lines += [f"  calls {json.dumps(call, ensure_ascii=False)}" for call in message.get("tool_calls") or ()]
    return "\n".join(lines)


def _tools(body: dict[str, Any]) -> str:
    lines = [f"tool_choice: {json.dumps(body.get('tool_choice', 'auto'))}"]
    for tool in body.get("tools") or ():
        function = tool["function"]
        lines.append(f"{function['name']}: {json.dumps(function.get('parameters'), ensure_ascii=False)}")
    return "\n".join(lines)


def _written(example: Example) -> str:
    """What the model must have written, as far as the parsed answer tells."""
    record = example.record
    text = f"<think>{record.reasoning}</think>" if record.reasoning else ""
    text += record.content
    if record.calls:
        begin, argument, end = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
        calls = "".join(f"{begin}{i or name}{argument}{arguments}{end}" for i, name, arguments in record.calls)
        text += f"<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>"
    return text or f"nothing: {record.error}"
