"""Counts model steps per token of held-out calls with grammar drafts alone, without a server: Kimi K2 and Kimi K3.

python -m benchmarks.drafts.formats TOKENIZER  (Kimi K2's, whose ordinary tokens are Kimi K3's; about 20 seconds)
"""

import argparse
import json
from collections.abc import Sequence
from itertools import islice
from typing import Any

from constrained_k2 import Compiler, ToolCallSpec, Vocabulary
from constrained_k2.evaluation.bundled import HELD_OUT, bundled_bodies
from constrained_k2.formats.kimi_k2 import BASE_SIZE
from constrained_k2.formats.kimi_k3 import SPECIAL_TOKENS
from constrained_k2.prompts.xtml.turn import render_turn
from constrained_k2.request.spec import ToolCall
from constrained_k2.turn.drafts.drafter import Drafter
from constrained_k2.turn.matcher import ToolCallMatcher


def _kimi_k3(kimi_k2: Vocabulary) -> Vocabulary:
    tokens = {token_id: raw for token_id in range(kimi_k2.size) if (raw := kimi_k2.ordinary_bytes(token_id))}
    special = {text: BASE_SIZE + offset for offset, text in SPECIAL_TOKENS.items()}
    return Vocabulary(tokens, special, kimi_k2.size, kimi_k2.encoder)


def _kimi_k2_turn(calls: Sequence[ToolCall], vocabulary: Vocabulary) -> list[int]:
    markers = vocabulary.format
    ids = [markers.section_begin]
    for index, call in enumerate(calls):
        header = vocabulary.encode(f"{markers.header_stem(call.name)}{index}")
        arguments = vocabulary.encode(call.arguments)
        ids += [markers.call_begin, *header, markers.argument_begin, *arguments, markers.call_end]
    return [*ids, markers.section_end, markers.turn_end]


def _steps(matcher: ToolCallMatcher, ids: Sequence[int], limit: int) -> int:
    drafter, position, steps = Drafter(matcher), 0, 0
    while position < len(ids):
        end = position
        for draft in drafter.draft(limit):
            if end == len(ids) or draft != ids[end]:
                break
            end += 1
        assert matcher.accept_tokens(ids[position : end + 1])
        position, steps = end + 1, steps + 1
    return steps


def _calls(sample: dict[str, Any]) -> list[ToolCall]:
    found = []
    for index, call in enumerate(sample["expected"]["calls"]):
        arguments = call["arguments"]
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        found.append(ToolCall(call["name"], index, text))
    return found


def main() -> None:
    """Print a line per format and number of draft tokens."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer")
    parser.add_argument("--turns", type=int, default=100)
    args = parser.parse_args()
    kimi_k2 = Vocabulary.from_pretrained(args.tokenizer)
    samples = (sample for sample in bundled_bodies(HELD_OUT, 4 * args.turns) if sample["expected"]["calls"])
    asked = list(islice(samples, args.turns))
    for vocabulary, written in ((kimi_k2, _kimi_k2_turn), (_kimi_k3(kimi_k2), render_turn)):
        compiler = Compiler(vocabulary)
        for limit in (8, 16, 32):
            steps = tokens = 0
            for sample in asked:
                ids = written(_calls(sample), vocabulary)
                spec = ToolCallSpec.from_openai({"tools": sample["tools"], "tool_choice": "required"})
                steps += _steps(compiler.compile(spec).matcher(), ids, limit)
                tokens += len(ids)
            each = f"{steps / tokens:.3f} steps per token, {steps / len(asked):.1f} steps per turn"
            print(f"{vocabulary.format.name}, {limit} draft tokens: {tokens} tokens, {each}")


if __name__ == "__main__":
    main()
