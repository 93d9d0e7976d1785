"""Shows which tokens the constraint overrode in an answer, where, and by which keyword.

Sends a chat request (JSON) to a vLLM server, sends the answer back without the constraint for the probabilities of its
tokens, and compares these with the mask, which is computed here. Each overridden token is shown as [wanted→written],
forced tokens are dimmed, and a table names the places. With --html it also writes one page, which shows on hover the
likeliest tokens before the mask.

With --offline no server is asked: it needs the request, a completion (text with its markers, or with --ids a JSON array
of token ids) and the tokenizer. It shows how many tokens were allowed at each place, and the first token that the mask
forbids, with the place and the keyword; exit code 1 if there is one.

example: constrained-k2 explain http://localhost:8000 request.json --tokenizer DIR --html out.html
         constrained-k2 explain --offline request.json --completion answer.txt --tokenizer DIR
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from constrained_k2.cli.reading import decode_json, read_json, read_text
from constrained_k2.errors import InvalidRequest

if TYPE_CHECKING:
    from constrained_k2.explain.turn import TurnExplainer
    from constrained_k2.explain.view import TurnView

_ANSWER_BYTES, _ANSWER_SECONDS = 64 << 20, 600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    add = parser.add_argument
    add("sources", nargs="*", metavar="URL REQUEST.json", help="the server's address, and a request (- for stdin)")
    add("--tokenizer", type=Path, metavar="DIR", help="the directory of the model's tokenizer")
    add("--html", type=Path, metavar="FILE", help="write one page, too")
    add("--model", help="the requested model (default: the request's, else the server's first)")
    add("--api-key-env", metavar="NAME", default="", help="the environment variable with the API key")
    add("--offline", action="store_true", help="ask no server; the only source is REQUEST.json")
    add("--completion", metavar="FILE", help="with --offline: the turn to explain (- for stdin)")
    add("--ids", action="store_true", help="with --offline: the completion is a JSON array of token ids")
    add("--in-reasoning", action="store_true", help="with --offline: the prompt opens the reasoning")


def run(options: argparse.Namespace) -> int:
    """Show the overrides; with --offline 1 if the mask forbids a token of the completion."""
    if options.tokenizer is None:
        raise InvalidRequest("is missing", "--tokenizer", "Name the directory with the model's tokenizer")
    view = _offline(options) if options.offline else _online(options)
    from constrained_k2.explain.terminal import show

    show(view)
    if options.html is not None:
        from constrained_k2.explain.page import to_html

        page = to_html(view, f"What the constraint changed: {options.sources[-1]}")
        try:
            options.html.write_text(page, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise InvalidRequest(f"cannot be written: {error}", "--html") from error
    return int(options.offline and bool(view.overrides))


def _explainer(options: argparse.Namespace) -> "TurnExplainer":
    from constrained_k2 import Vocabulary
    from constrained_k2.explain.turn import TurnExplainer

    return TurnExplainer(Vocabulary.from_pretrained(options.tokenizer))


def _offline(options: argparse.Namespace) -> "TurnView":
    from constrained_k2 import ToolCallSpec
    from constrained_k2.prompts.special_text import SpecialTexts

    if len(options.sources) != 1:
        raise InvalidRequest("expected one source", "REQUEST.json", "Give the request alone")
    if options.completion is None:
        raise InvalidRequest("needs --completion", "--offline", "Name the file with the turn")
    spec = ToolCallSpec.from_openai(read_json(options.sources[0]))
    explainer = _explainer(options)
    vocabulary, text = explainer.vocabulary, read_text(options.completion)
    ids: Any = SpecialTexts(vocabulary.special_tokens).encode(text, vocabulary)
    if options.ids:
        ids = decode_json(text, options.completion)
        if not isinstance(ids, list) or not all(type(each) is int and 0 <= each < vocabulary.size for each in ids):
            problem = f"is not an array of token ids from 0 to {vocabulary.size - 1}"
            raise InvalidRequest(problem, options.completion, "Write one JSON array")
    return explainer.explain(spec, ids, in_reasoning=options.in_reasoning)


def _online(options: argparse.Namespace) -> "TurnView":
    import asyncio

    from constrained_k2.evaluation.answer import NoAnswer
    from constrained_k2.evaluation.client import BodyLimits, Client, api_key_in
    from constrained_k2.evaluation.explained import explained

    if len(options.sources) != 2:
        raise InvalidRequest("expected two sources", "URL REQUEST.json", "Give the server's address and a request")
    url, path = options.sources
    body = read_json(path)
    if not isinstance(body, dict):
        raise InvalidRequest("is not a JSON object", path, "Write a chat-completions request")
    key, explainer = api_key_in(options.api_key_env, "--api-key-env"), _explainer(options)
    whole = {name: value for name, value in body.items() if name != "stream_options"} | {"stream": False, "n": 1}

    async def asked() -> "TurnView":
        async with Client(url, key, BodyLimits(_ANSWER_BYTES, _ANSWER_SECONDS)) as client:
            model = options.model or body.get("model") or next(iter(await client.models()), "")
            (answer, *_) = await client.chat(whole | {"model": model, "return_token_ids": True})
            view, _ = await explained(client, explainer, model, body, answer)
            return view

    try:
        return asyncio.run(asked())
    except NoAnswer as error:
        raise InvalidRequest(str(error), url, "Check the address, the request and the key") from None
