"""Renders a request as a prompt, and shows its repairs and faults.

The checkpoint's chat template renders it after the same repairs that this package's server makes: ids of calls and
results, content that is not text, tool keys that are not part of a prompt, special tokens in messages and tools (a WORD
JOINER after their first character keeps them text), the generation prompt. Kimi K3's prompts need no template: this
package renders them. The prompt goes to standard output; repairs and faults go to standard error.

exit codes: 0 good; 1 the prompt has faults, or differs from the server's; 2 bad use.

example: constrained-k2 render request.json --tokenizer ./kimi-k2 --diff http://localhost:8000
"""

import argparse
import asyncio
import difflib
import json
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from constrained_k2.cli.reading import read_json, read_text
from constrained_k2.errors import InvalidRequest

if TYPE_CHECKING:
    from constrained_k2.prompts import RenderedPrompt, Repair
    from constrained_k2.prompts.fault import Fault
    from constrained_k2.prompts.prompt import Renderer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    add = parser.add_argument
    add("request", nargs="?", default="-", metavar="REQUEST.json", help="a request body (default: standard input)")
    add("--tokenizer", required=True, metavar="DIR", help="the checkpoint's tokenizer; with --trust also a model name")
    add("--template", metavar="FILE", help="a chat template to use instead of the checkpoint's")
    add("--trust", action="store_true", help="run the checkpoint's tokenizer code, which K2.5 and later need for tools")
    add("--no-repair", action="store_true", help="the template alone, as on a stock server")
    add("--json", action="store_true", help='{"text", "ids", "repairs", "faults", …} instead')
    add("--diff", metavar="URL", help="compare with /tokenize of a running server")


def run(options: argparse.Namespace) -> int:
    """Show the prompt; 1 if it has faults or differs from the server's."""
    from constrained_k2.prompts import find_faults, prompt_renderer

    body = read_json(options.request)
    template = None if options.template is None else read_text(options.template)
    renderer = prompt_renderer(Path(options.tokenizer), template=template, trust=options.trust)
    rendered = renderer.render(body, repair=not options.no_repair)
    faults = find_faults(rendered.ids, rendered.body, vocabulary=renderer.vocabulary)
    served = None if options.diff is None else served_ids(options.diff, body, renderer)
    served_faults = [] if served is None else find_faults(served, vocabulary=renderer.vocabulary)
    same = served == list(rendered.ids)
    if options.json:
        document: dict[str, Any] = {"text": rendered.text, "ids": rendered.ids}
        document["repairs"] = [_to_json(repair, "before", "after") for repair in rendered.repairs]
        document["faults"] = [_to_json(fault, "problem", "remedy") for fault in faults]
        if served is not None:
            document["served"] = {"same": same, "text": renderer.vocabulary.decode(served), "ids": served}
            document["served"]["faults"] = [_to_json(fault, "problem", "remedy") for fault in served_faults]
        print(json.dumps(document, ensure_ascii=False))
    else:
        _show(rendered, renderer)
        count = len(rendered.repairs)
        _say(f"{len(rendered.ids)} tokens, {count or 'no'} repair{'' if count == 1 else 's'}", "bold")
        for repair in rendered.repairs:
            change = f"{_short(repair.before)} → {_short(repair.after)}"
            _say("repaired ", "green", f"{repair.location} ({repair.kind}): {change}")
        _report_faults("fault: ", faults)
        if served is not None:
            _report_difference(list(rendered.ids), served, renderer)
            if not same:
                _report_faults("server's fault: ", served_faults)
    return int(bool(faults) or (served is not None and not same))


def served_ids(url: str, body: dict[str, Any], renderer: "Renderer") -> list[int]:
    """Tokenize a request with vLLM's ``/tokenize`` of a running server, which reads no ``tool_choice`` and no forms."""
    from constrained_k2.evaluation.answer import NoAnswer
    from constrained_k2.evaluation.client import Client
    from constrained_k2.prompts.prompt import template_variables
    from constrained_k2.prompts.xtml.options import read_options

    fields = ("model", "messages", "tools", "add_generation_prompt", "continue_final_message", "vllm_xargs")
    asked = {field: body[field] for field in fields if body.get(field) is not None}
    if isinstance(messages := asked.get("messages"), list):
        asked["messages"] = [_with_reasoning(message) for message in messages]
    variables = template_variables(body)
    if renderer.vocabulary.format.argument_encoding == "xtml" and (chosen := read_options(body)).effort is not None:
        variables = {**variables, "thinking": chosen.thinking, "thinking_effort": chosen.effort}
    if variables:
        asked["chat_template_kwargs"] = variables

    async def tokenize() -> list[int]:
        async with Client(url, location="--diff") as client:
            return await client.tokenize(asked)

    try:
        return asyncio.run(tokenize())
    except NoAnswer as failure:
        raise InvalidRequest(str(failure), url, "Start the server, or correct the address") from None


def _with_reasoning(message: Any) -> Any:
    """A message with its reasoning where ``/tokenize`` reads it too; the chat endpoint renames the field itself."""
    if isinstance(message, dict) and message.get("reasoning") is None and "reasoning_content" in message:
        return {**message, "reasoning": message["reasoning_content"]}
    return message


def _to_json(found: "Fault | Repair", *fields: str) -> dict[str, Any]:
    values = {field: getattr(found, field) for field in ("location", "kind", *fields)}
    return dict(json.loads(json.dumps(values, default=str)))


def _show(rendered: "RenderedPrompt", renderer: "Renderer") -> None:
    """Print the prompt; on a terminal with its special tokens coloured."""
    from rich.console import Console
    from rich.text import Text

    from constrained_k2.prompts.special_text import JOINER, SpecialTexts

    console = Console(highlight=False)
    if not console.is_terminal:
        print(rendered.text)
        return
    shown = Text()
    plain = {start for start, _ in rendered.plain_spans}
    for piece, special in SpecialTexts(renderer.vocabulary.special_tokens).split(rendered.text):
        shown.append(piece, style="bold magenta" if special and len(shown) not in plain else "")
    shown.highlight_regex(rf"[<\[]{JOINER}[^>\]]*[>\]]", style="yellow underline")
    console.print(shown, soft_wrap=True)


def _report_difference(ours: list[int], served: list[int], renderer: "Renderer") -> None:
    """Print a diff of the two prompts, one line per turn; of the ids if the texts are the same."""
    if ours == served:
        _say("The server renders the same prompt.", "green")
        return
    first = next(number for number, (a, b) in enumerate(zip_longest(ours, served)) if a != b)
    _say(f"The server's prompt differs from token {first} on:", "bold red")
    texts = map(renderer.vocabulary.decode, (ours, served))
    end = renderer.vocabulary.special_text(renderer.vocabulary.format.turn_end) or "\n"
    before, after = (text.replace(end, f"{end}\n").split("\n") for text in texts)
    if before == after:
        _say(f"- {ours[first : first + 12]}", "red")
        _say(f"+ {served[first : first + 12]}", "green")
    for line in difflib.unified_diff(before, after, "here", "server", lineterm="", n=1):
        _say(line, {"-": "red", "+": "green"}.get(line[:1], "dim"))


def _report_faults(title: str, faults: Iterable["Fault"]) -> None:
    for fault in faults:
        _say(title, "red", f"{fault.location} ({fault.kind}): {fault.problem}", f". {fault.remedy}.")


def _say(start: str, style: str, text: str = "", remark: str = "") -> None:
    """Print a line to standard error: its start in a style, and a dimmed remark at its end."""
    from rich.console import Console
    from rich.text import Text

    line = Text(start, style=style).append(text, style="default").append(remark, style="dim")
    Console(stderr=True, highlight=False, soft_wrap=True).print(line)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 100 else f"{text[:80]}… ({len(text)} characters)"
