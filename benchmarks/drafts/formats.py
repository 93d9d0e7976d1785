"""Counts model steps per token of held-out calls without a server: n-gram, grammar and prompt drafts; K2 and K3.

python -m benchmarks.drafts.formats TOKENIZER  (Kimi K2's, whose ordinary tokens are Kimi K3's; about a minute)
"""

import argparse
import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from constrained_k2 import Compiler, ToolCallSpec, Vocabulary
from constrained_k2.evaluation.sample import bundled_bodies
from constrained_k2.formats.kimi_k2 import BASE_SIZE
from constrained_k2.formats.kimi_k3 import SPECIAL_TOKENS
from constrained_k2.prompts import render_tool_calls
from constrained_k2.prompts.prompt import PromptRenderer, Renderer
from constrained_k2.prompts.xtml.prompt import XtmlRenderer
from constrained_k2.prompts.xtml.turn import render_turn
from constrained_k2.request.spec import ToolCall
from constrained_k2.turn.drafts.drafter import Drafter
from constrained_k2.turn.matcher import ToolCallMatcher
from scripts.small_model.shipped import HELD_OUT

Propose = Callable[[int], list[int]]
"""Drafts at most so many tokens after the tokens that the matcher has accepted."""

ARMS = ("n-gram", "grammar", "grammar and prompt")
_TURNS = 300
_SHORTEST, _LONGEST = 2, 4  # tokens that n-gram drafts look up


def ngram_draft(ids: Sequence[int], limit: int) -> list[int]:
    """The tokens behind the earliest occurrence of the longest n-gram that the tokens end in, as vLLM's proposer."""
    raw = array("q", ids).tobytes()
    for length in range(min(_LONGEST, len(ids) - 1), _SHORTEST - 1, -1):
        wanted, at = raw[-8 * length :], -1
        while (at := raw.find(wanted, at + 1)) % 8:
            continue
        if at // 8 < len(ids) - length:
            begin = at // 8 + length
            return list(ids[begin : begin + limit])
    return []


@dataclass(slots=True)
class Drafted:
    """Model steps and draft tokens of some turns."""

    tokens: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0

    def add(self, matcher: ToolCallMatcher, ids: Sequence[int], limit: int, propose: Propose) -> None:
        """Write a turn, ``limit`` draft tokens a step."""
        position = 0
        while position < len(ids):
            drafts, right = propose(limit), 0
            for draft, token_id in zip(drafts, ids[position:], strict=False):
                if draft != token_id:
                    break
                right += 1
            taken = ids[position : position + right + 1]
            assert matcher.accept_tokens(taken)
            position, self.steps = position + len(taken), self.steps + 1
            self.drafted, self.accepted = self.drafted + len(drafts), self.accepted + right
        self.tokens += len(ids)


def proposer(arm: str, matcher: ToolCallMatcher, prompt: Sequence[int]) -> Propose:
    """An arm's drafts for one request."""
    if arm == "n-gram":
        return lambda limit: matcher.validate_tokens(ngram_draft([*prompt, *matcher.token_ids()], limit))
    return Drafter(matcher, prompt if arm == "grammar and prompt" else ()).draft


def _kimi_k3(kimi_k2: Vocabulary) -> Vocabulary:
    tokens = {token_id: raw for token_id in range(kimi_k2.size) if (raw := kimi_k2.ordinary_bytes(token_id))}
    special = {text: BASE_SIZE + offset for offset, text in SPECIAL_TOKENS.items()}
    return Vocabulary(tokens, special, kimi_k2.size, kimi_k2.encoder)


def _kimi_k2_turn(calls: Sequence[ToolCall], vocabulary: Vocabulary) -> list[int]:
    return [*render_tool_calls(calls, vocabulary), vocabulary.format.turn_end]


def _body(sample: Mapping[str, Any]) -> dict[str, Any]:
    """The request of a sample, with a required call; the history's calls are spaced like the expected ones."""
    messages = [dict(message) for message in sample["messages"]]
    for message in messages:
        message["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _spaced(call["function"]["arguments"])}}
            for call in message.get("tool_calls", ())
        ]
        if not message["tool_calls"]:
            del message["tool_calls"]
    return {"messages": messages, "tools": sample["tools"], "tool_choice": "required"}


def _spaced(arguments: str) -> str:
    return json.dumps(json.loads(arguments), ensure_ascii=False)


def _calls(sample: Mapping[str, Any], first: int) -> list[ToolCall]:
    found = []
    for index, call in enumerate(sample["expected"]["calls"], first):
        arguments = call["arguments"]
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        found.append(ToolCall(call["name"], index, text))
    return found


def _formats(tokenizer: str) -> list[tuple[Renderer, Callable[..., list[int]], int]]:
    """Return what renders each format's prompts and turns, and its number of draft tokens a step."""
    template = (files("constrained_k2.testing") / "chat_template.jinja").read_text("utf-8")
    kimi_k2 = PromptRenderer.from_template(template, Vocabulary.from_pretrained(tokenizer))
    return [(kimi_k2, _kimi_k2_turn, 8), (XtmlRenderer(_kimi_k3(kimi_k2.vocabulary)), render_turn, 16)]


def main() -> None:
    """Print a line per format and arm."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer")
    tokenizer = parser.parse_args().tokenizer
    asked = [sample for sample in bundled_bodies(HELD_OUT, _TURNS) if sample["expected"]["calls"]]
    for renderer, written, limit in _formats(tokenizer):
        vocabulary, compiler = renderer.vocabulary, Compiler(renderer.vocabulary)
        results = {arm: Drafted() for arm in ARMS}
        for sample in asked:
            body = _body(sample)
            spec, prompt = ToolCallSpec.from_openai(body), renderer.render(body, repair=False).ids
            ids = written(_calls(sample, spec.first_index), vocabulary)
            for arm, drafted in results.items():
                matcher = compiler.compile(spec).matcher()
                drafted.add(matcher, ids, limit, proposer(arm, matcher, prompt))
        print(f"{vocabulary.format.name}, {limit} draft tokens a step, {len(asked)} turns")
        for arm, found in results.items():
            each = f"{found.steps / found.tokens:.3f} steps per token, {found.steps / len(asked):5.1f} per turn"
            print(f"  {arm:20} {each}, {found.accepted:5} of {found.drafted:5} draft tokens accepted")


if __name__ == "__main__":
    main()
