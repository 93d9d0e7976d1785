"""Soak test: slow client grammars in a batch with good requests, whose masks must not change. Memory must not grow.

    python -m tests.laws.soak --minutes 10

In each round, good and hostile turns share one batch, as in a step of an engine core. Memory is compared after the
first rounds, which fill the caches. The CPU time of a hostile turn's mask is the delay of the other turns in its step.
"""

import argparse
import gc
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from constrained_k2 import Compiler, ConstrainedK2Error, ToolCallSpec
from constrained_k2.turn.pipeline import fill_bitmasks
from constrained_k2.vocabulary.bitmask import allocate_bitmask, allowed_ids
from tests.kit.grammars import text_body
from tests.kit.tools import tool
from tests.laws.examples import benches

_STEPS = 60
_WARM_ROUNDS = 12
_PAGE_KIB = 4

HOSTILE: list[tuple[str, str]] = [
    # custom tools by lark and regex, answers by structured_outputs.grammar and regex
    ("lark", 'start: ("abcdefghij"~100)~100 "!"'),
    ("lark", 'start: x~100\nx: y~100\ny: "abc"~100'),
    ("lark", 'start: ("a"?)~1000 "a"~1000'),
    ("lark", 'start: s\ns: a s | s b | s s a | "x"\na: "x"\nb: "x" "x"?'),
    ("lark", "start: " + " ".join(f"r{n}?" for n in range(200)) + "".join(f'\nr{n}: "a" | "b"' for n in range(200))),
    ("lark", "start: /(\\w{1,100} ){1,100}/"),
    ("lark", "start: (" + " | ".join(f"/[a-z]*{letter}[a-z]*/" for letter in "abcdefghijkl") + ")*"),
    ("regex", "(abc){10000}"),
    ("regex", "(.*a){30}"),
    ("regex", "\\p{L}{500}"),
    ("grammar", 'start: /=+/ "="'),
    ("grammar", 'start: s\ns: s s | "a" | "b"'),
    ("grammar", 'start: x{100}\nx: y{100}\ny: "abc"{100}'),
    ("grammar", "start: T\nT: ~/.*a.{12}/"),
    ("grammar", 'root ::= root root | "a" | "b"'),
    ("answer regex", "((a{1,50}){1,50}){1,50}"),
    ("answer regex", "[\\w-]{1,5000}@[a-z]{1,5000}"),
]
_PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}, "unit": {"enum": ["c", "f"]}},
    "required": ["city"],
}
GOOD = [tool(name, _PARAMETERS) for name in ("weather", "forecast")]


@dataclass
class Report:
    """The findings of a soak."""

    rounds: int = 0
    hostile_steps: int = 0
    refused: int = 0
    ended: int = 0
    slowest_ms: float = 0.0
    growth_mib: float = 0.0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.rounds} rounds, {self.hostile_steps} hostile masks, the slowest {self.slowest_ms:.0f} ms of CPU, "
            f"{self.refused} grammars refused, {self.ended} calls ended, memory {self.growth_mib:+.0f} MiB"
        )


def soak(compiler: Compiler, seconds: float, hostile: Sequence[tuple[str, str]] = HOSTILE) -> Report:
    """Run rounds for some seconds, and at least one after the warm-up rounds."""
    report, until, before = Report(), time.monotonic() + seconds, 0.0
    expected = _good_masks(compiler, random.Random(0))
    while report.rounds <= _WARM_ROUNDS or time.monotonic() < until:
        kind, text = hostile[report.rounds % len(hostile)]
        try:
            turn: Any = compiler.compile(ToolCallSpec.from_openai(text_body(kind, text))).matcher()
        except ConstrainedK2Error:
            turn = None
            report.refused += 1
        if _good_masks(compiler, random.Random(0), turn, report) != expected:
            report.problems.append(f"another request's masks differ beside {kind}: {text[:80]}")
        report.rounds += 1
        if report.rounds == _WARM_ROUNDS:
            before = _memory_mib()
    report.growth_mib = _memory_mib() - before
    return report


def _good_masks(compiler: Compiler, draw: random.Random, hostile: Any = None, report: Report | None = None) -> str:
    """The digest of the masks of random good turns, with a hostile one in their batch."""
    size = compiler.vocabulary.size
    rows, digest, chance = allocate_bitmask(4, size), sha256(), random.Random(1)
    spec = ToolCallSpec.from_openai({"tools": GOOD, "tool_choice": "required"})
    turns: list[Any] = [compiler.compile(spec).matcher() for _ in range(3)]
    for _ in range(_STEPS):
        turns = [turn for turn in turns if not turn.is_terminated()]
        failed = fill_bitmasks(turns, rows, range(len(turns)))
        assert not failed
        for number, turn in enumerate(turns):
            digest.update(rows[number].tobytes())
            assert turn.accept_tokens([int(draw.choice(allowed_ids(rows[number])))])
        if hostile is not None and report is not None and not _step(hostile, rows, chance, report):
            hostile = None
    return digest.hexdigest()


def _step(turn: Any, rows: Any, chance: random.Random, report: Report) -> bool:
    """Take a step of a hostile turn; False if it has ended."""
    begun = time.thread_time()
    has_failed = bool(fill_bitmasks([turn], rows, [3]))
    report.slowest_ms = max(report.slowest_ms, 1000 * (time.thread_time() - begun))
    report.hostile_steps += 1
    try:
        is_taken = not has_failed and turn.accept_tokens([int(chance.choice(allowed_ids(rows[3])))])
    except ConstrainedK2Error:
        has_failed = True
    if has_failed:
        report.ended += 1
        return False
    if not is_taken:
        report.problems.append("a token of a mask is refused")
    return is_taken and not turn.is_terminated()


def _memory_mib() -> float:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_KIB / 1024


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 1 if masks differ, or memory grows by more than the limit."""
    parser = argparse.ArgumentParser("python -m tests.laws.soak", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default: %(default)s)")
    parser.add_argument("--mib", type=float, default=100.0, help="memory that may be added (default: %(default)s)")
    options = parser.parse_args(arguments)
    report = soak(benches()[0].compiler, 60 * options.minutes)
    if report.growth_mib > options.mib:
        report.problems.append(f"memory has grown by {report.growth_mib:.0f} MiB")
    print(report, *report.problems[:10], sep="\n")
    return int(bool(report.problems))


if __name__ == "__main__":
    sys.exit(main())
