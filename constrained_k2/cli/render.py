"""``constrained-k2 render``: the prompt that a request becomes, and what was mended in it."""

import argparse
import difflib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from constrained_k2.cli.reading import read_json, read_text
from constrained_k2.errors import InvalidRequest

if TYPE_CHECKING:
    from constrained_k2.rendering import Fault, PromptRenderer, RenderedPrompt

_DESCRIPTION = """\
Show the prompt that a checkpoint's chat template makes of a chat-completions request, after the repairs that this
package's server makes too: ids of calls and results, content that is no text, keys of tools that are no part of a
prompt, special tokens in what users and tools wrote (a WORD JOINER behind their first character keeps them text), the
generation prompt. The prompt goes to standard output, what was mended and what is wrong to standard error.

exit codes: 0 good; 1 the prompt that is shown has faults, or the server makes another one; 2 bad use.
"""


def add_parser(verbs: Any) -> None:
    """Add this verb."""
    parser = verbs.add_parser(
        "render",
        help="the prompt that a request becomes, and what was mended in it",
        description=_DESCRIPTION,
        epilog="example: constrained-k2 render request.json --tokenizer ./kimi-k2 --diff http://localhost:8000",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "request", nargs="?", default="-", metavar="REQUEST.json", help="a request body; - or nothing: standard input"
    )
    parser.add_argument(
        "--tokenizer", required=True, metavar="DIR", help="the checkpoint's tokenizer; with --trust also a model name"
    )
    parser.add_argument("--template", metavar="FILE", help="a chat template to use instead of the checkpoint's")
    parser.add_argument(
        "--trust",
        action="store_true",
        help="run the checkpoint's own tokenizer code, which K2.5 and later need to declare tools in TypeScript",
    )
    parser.add_argument(
        "--no-repair", action="store_true", help="the template alone: what a stock server may make of it"
    )
    parser.add_argument("--ids", action="store_true", help="the token ids instead of the text")
    parser.add_argument("--json", action="store_true", help='{"text", "ids", "repairs", "faults", …} instead')
    parser.add_argument(
        "--diff", metavar="URL", help="compare with what a running server's /tokenize makes of the request as it is"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Show the prompt; 1 if it has faults or the server's is another one."""
    from constrained_k2.rendering import PromptRenderer, find_faults
    from constrained_k2.rendering.mending import as_json

    body = read_json(options.request)
    template = None if options.template is None else read_text(options.template)
    tokenizer = Path(options.tokenizer)
    renderer = PromptRenderer.from_pretrained(tokenizer, template=template, trust=options.trust)
    rendered = renderer.render(body, repair=not options.no_repair)
    faults = find_faults(rendered.ids, rendered.body, vocabulary=renderer.vocabulary)
    served = None if options.diff is None else served_ids(options.diff, body)
    served_faults = None if served is None else find_faults(served, vocabulary=renderer.vocabulary)
    if options.json:
        document: dict[str, Any] = {
            "text": rendered.text,
            "ids": rendered.ids,
            "repairs": as_json(rendered.repairs),
            "faults": [_fault_json(fault) for fault in faults],
        }
        if served is not None:
            document["served"] = {
                "same": served == list(rendered.ids),
                "text": renderer.vocabulary.decode(served),
                "ids": served,
                "faults": [_fault_json(fault) for fault in served_faults or ()],
            }
        print(json.dumps(document, ensure_ascii=False))
    else:
        _show(rendered, renderer, ids=options.ids)
        _report(rendered, faults)
        if served is not None:
            _report_difference(rendered, served, served_faults or [], renderer)
    return int(bool(faults) or (served is not None and served != list(rendered.ids)))


def served_ids(url: str, body: dict[str, Any]) -> list[int]:
    """The prompt that a running server makes of a request, by vLLM's ``/tokenize``.

    Args:
        url: The server's address, with or without ``/v1``.
        body: The request.

    Raises:
        InvalidRequest: The server cannot be reached, refuses it, or answers with something else.
    """
    import httpx

    from constrained_k2.rendering.prompt import template_variables

    fields = ("model", "messages", "tools", "add_generation_prompt", "continue_final_message", "vllm_xargs")
    asked = {field: body[field] for field in fields if body.get(field) is not None}
    if variables := template_variables(body):
        asked["chat_template_kwargs"] = variables
    place = f"{url.rstrip('/').removesuffix('/v1')}/tokenize"
    try:
        answer = httpx.post(place, json=asked, timeout=60)
        tokens = answer.json().get("tokens") if answer.is_success else None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, AttributeError) as error:
        raise InvalidRequest(f"gives no answer: {error}", place, "Start the server, or correct the address") from error
    if not isinstance(tokens, list) or not all(type(token_id) is int for token_id in tokens):
        raise InvalidRequest(f"answers with {answer.status_code}: {answer.text[:300]}", place)
    return tokens


def _fault_json(fault: "Fault") -> dict[str, str]:
    return {"kind": fault.kind, "place": fault.place, "problem": fault.problem, "remedy": fault.remedy}


def _show(rendered: "RenderedPrompt", renderer: "PromptRenderer", *, ids: bool) -> None:
    """The prompt on standard output: as it is where that is no terminal, else with its special tokens coloured."""
    from rich.console import Console
    from rich.text import Text

    from constrained_k2.rendering.special_text import JOINER, SpecialTexts

    if ids:
        print(json.dumps(rendered.ids))
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        print(rendered.text)
        return
    shown = Text()
    for piece, special in SpecialTexts(renderer.vocabulary.special_tokens).split(rendered.text):
        shown.append(piece, style="bold magenta" if special else "")
    shown.highlight_regex(rf"[<\[]{JOINER}[^>\]]*[>\]]", style="yellow underline")
    console.print(shown, soft_wrap=True)


def _report(rendered: "RenderedPrompt", faults: Sequence["Fault"]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(Text(f"{len(rendered.ids)} tokens, {_number(rendered.repairs, 'repair')}", style="bold"))
    for repair in rendered.repairs:
        change = f"{_short(repair.before)} → {_short(repair.after)}"
        console.print(
            Text("mended ", style="green").append(f"{repair.place} ({repair.kind}): {change}", style="default")
        )
    _print_faults(console, "wrong", faults)


def _report_difference(
    rendered: "RenderedPrompt", served: list[int], faults: Iterable["Fault"], renderer: "PromptRenderer"
) -> None:
    """What the server's prompt has instead, a line a turn; in ids where the texts are the same."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    ours, theirs = list(rendered.ids), served
    if ours == theirs:
        console.print(Text("The server makes the same prompt.", style="green"))
        return
    first = next((n for n, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)
    first = min(len(ours), len(theirs)) if first is None else first
    console.print(Text(f"The server's prompt is another one, from token {first} on:", style="bold red"))
    before, after = _lines(rendered.text), _lines(renderer.vocabulary.decode(theirs))
    if before == after:
        console.print(Text(f"- {ours[first : first + 12]}", style="red"))
        console.print(Text(f"+ {theirs[first : first + 12]}", style="green"))
    for line in difflib.unified_diff(before, after, "here", "server", lineterm="", n=1):
        console.print(Text(line, style={"-": "red", "+": "green"}.get(line[:1], "dim")))
    _print_faults(console, "wrong with the server's", faults)


def _print_faults(console: Any, title: str, faults: Iterable["Fault"]) -> None:
    from rich.text import Text

    for fault in faults:
        line = Text(f"{title} ", style="red").append(f"{fault.place} ({fault.kind}): {fault.problem}", style="default")
        console.print(line.append(f". {fault.remedy}.", style="dim"))


def _lines(text: str) -> list[str]:
    """The turns and their lines, for a comparison."""
    return list(_split(text))


def _split(text: str) -> Iterator[str]:
    for turn in text.replace("<|im_end|>", "<|im_end|>\0").split("\0"):
        yield from turn.split("\n")


def _number(things: Sequence[Any], name: str) -> str:
    return f"{len(things) or 'no'} {name}{'' if len(things) == 1 else 's'}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 100 else f"{text[:80]}… ({len(text)} characters)"
