"""Measure model steps per token with drafts of the grammar and of an EAGLE-3 head (at most 15 minutes).

Sends the same greedy public questions to SmolLM2 with every arm: some must call a tool, the others declare none. Exit
code 1 if an answer changes, or if grammar drafts need more than 0.4 steps per token of the calls.
"""

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from operator import eq
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from benchmarks.report import table
from benchmarks.servers.harness import answers
from constrained_k2.evaluation.ab.serving import ALL_CORES, CPU_FLAGS
from constrained_k2.evaluation.server import API_SERVER, BACKEND_FLAGS, VllmServer
from constrained_k2.evaluation.server_metrics import Counters, growth, parse_counters, total
from scripts.smollm2.checkpoint import write_checkpoint, write_shipped_head
from scripts.smollm2.eagle import TOKENS
from scripts.smollm2.questions import drawn_tests, questions

_NO_GRAMMAR_DRAFTS: tuple[str, ...] = ("--additional-config", json.dumps({"constrained_k2": {"drafts": False}}))
_LIMIT = 8  # draft tokens a step without a head
_SYNCHRONOUS: tuple[str, ...] = ("--no-async-scheduling",)
_COMMON = {"model": "kimi-k2", "temperature": 0, "return_token_ids": True}


def arms(limit: int, head: Path) -> Mapping[str, tuple[str, ...]]:
    """Return the flags of each arm; ``limit`` is the number of draft tokens a step without the head."""
    ours = {"model": "constrained_k2.vllm_plugin.GrammarProposer", "num_speculative_tokens": limit}
    eagle = {"method": "eagle3", "model": str(head), "num_speculative_tokens": TOKENS}
    drafts: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
        "EAGLE-3": (eagle, _NO_GRAMMAR_DRAFTS),
        "grammar": ({"method": "custom_class", **ours}, ()),
        "grammar and EAGLE-3": (eagle, _SYNCHRONOUS),
    }
    flags = {name: ("--speculative-config", json.dumps(value), *more) for name, (value, more) in drafts.items()}
    return {"none": (), **flags}


class Counts(NamedTuple):
    """The tokens and draft tokens of some answers.

    Attributes:
        tokens: Of all answers.
        drafted: Draft tokens that the model verified.
        accepted: Those that it kept.
        at: The same, by their position in a step's draft.
    """

    tokens: int
    drafted: int
    accepted: int
    at: tuple[int, ...]

    @classmethod
    def of(cls, counters: Counters) -> "Counts":
        """Read a server's counters."""
        tokens, drafted, accepted = (round(total(counters, f"vllm:{name}_total")) for name in _COUNTERS)
        by_position = {
            int(found[1]): round(value) for name, value in counters.items() if (found := _POSITION.search(name))
        }
        return cls(tokens, drafted, accepted, tuple(by_position[each] for each in sorted(by_position)))

    @property
    def steps(self) -> float:
        """Model steps per token."""
        return (self.tokens - self.accepted) / self.tokens


_COUNTERS = ("generation_tokens", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens")
_POSITION = re.compile(r'accepted_tokens_per_pos_total\{.*position="(\d+)"')


def measured(url: str, bodies: Sequence[Mapping[str, Any]]) -> tuple[list[Any], Counts]:
    """Send requests; return the ids of each answer, and what was counted meanwhile."""
    before = _counters(url)
    found = [answer["choices"][0]["token_ids"] for _, answer in answers(url, bodies, concurrency=32)]
    return found, Counts.of(growth(before, _counters(url)))


def _counters(url: str) -> Counters:
    return parse_counters(httpx.get(f"{url}/metrics", timeout=30).text, "vllm:")


def asked(requests: int) -> dict[str, list[dict[str, Any]]]:
    """Return the questions that must call a tool, and the same ones without tools."""
    samples = [sample for sample in drawn_tests(questions().tests, 2 * requests) if sample.expected]
    texts = [_COMMON | {"messages": sample.body["messages"], "max_tokens": 100} for sample in samples[:requests]]
    required = {"tool_choice": "required", "max_tokens": 300}
    calls = [body | required | {"tools": sample.body["tools"]} for body, sample in zip(texts, samples, strict=False)]
    return {"calls": calls, "text": texts}


def main() -> int:
    """Measure, and print one line per arm and kind of request."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drafts", description=__doc__)
    parser.add_argument("--requests", type=int, default=24, help="of each kind (default: %(default)s)")
    parser.add_argument("--arm", action="append", default=[], help="only this one and none; may be given several times")
    options = parser.parse_args()
    bodies = asked(options.requests)
    expected: dict[str, list[Any]] = {}
    rows: list[tuple[str, ...]] = []
    is_good = True
    with tempfile.TemporaryDirectory() as name:
        model = write_checkpoint(Path(name) / "model")
        flags = arms(_LIMIT, write_shipped_head(model))
        for arm in ("none", *(options.arm or list(flags)[1:])):
            log = Path(name) / f"{arm}.log"
            served = (*BACKEND_FLAGS, *CPU_FLAGS, *flags[arm])
            with VllmServer(model, served, log=log, entry=API_SERVER, environment=ALL_CORES) as server:
                for kind, sent in bodies.items():
                    found, counts = measured(server.url, sent)
                    same = sum(map(eq, found, expected.setdefault(kind, found)))
                    is_good &= same == len(found)
                    is_good &= counts.steps < 0.4 or kind != "calls" or not arm.startswith("grammar")
                    accepted = (
                        f"{counts.accepted:,} of {counts.drafted:,}",
                        " ".join(f"{count:,}" for count in counts.at),
                    )
                    rows.append((arm, kind, f"{counts.steps:.3f}", *accepted, f"{same} of {len(found)}"))
    headings = ("drafts", "of", "model steps per token", "draft tokens accepted", "by position")
    print(table((*headings, "same answers as without drafts"), rows))
    return int(not is_good)


if __name__ == "__main__":
    sys.exit(main())
