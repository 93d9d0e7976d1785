"""Print the league table of MaskBench's schemas: our grammars beside the engines' own converters.

Every schema is compiled over Kimi's vocabulary, and each of its instances is written under a mask for each token. That
takes about twenty minutes on two cores; `--step 20` takes every 20th schema. xgrammar's converter takes seconds for a
schema, so it gets every 200th of those. Needs scripts/fetch_data.py.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from benchmarks.league.confirm import disproof
from benchmarks.league.verdicts import STATUSES, Sums, Verdict
from benchmarks.schemas import corpora
from benchmarks.schemas.arms import ArmName
from benchmarks.schemas.corpora import Case
from benchmarks.schemas.figures import run_all
from scripts.fetch_data import data_path

ARMS: tuple[ArmName, ...] = ("ours, strict", "ours, llguidance", "llguidance's builtin", "xgrammar's builtin")
_TITLES: dict[ArmName, str] = {
    "ours, strict": "constrained_k2, strict tools",
    "ours, llguidance": "constrained_k2, other tools",
    "llguidance's builtin": "LLGuidance's converter",
    "xgrammar's builtin": "xgrammar's converter",
}
_XGRAMMAR_STEP = 200
_TOKENIZER = "kimi_k2/tokenizer"
Say = Callable[[str], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the arms and print the table. Exit code 1 if one of our arms breaks a promise."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.league", description=__doc__)
    parser.add_argument("--arm", choices=ARMS, action="append", help="only this arm; repeatable")
    parser.add_argument("--step", type=int, default=1, help="take every STEPth schema (default: %(default)s)")
    parser.add_argument("--xgrammar-step", type=int, default=_XGRAMMAR_STEP, help="of those (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, help="time limit a schema (default: %(default)s)")
    parser.add_argument("--statuses", type=Path, default=Path("maskbench.jsonl"), help="the verdict on each schema")
    options = parser.parse_args(arguments)
    path, tokenizer = data_path(corpora.MASKBENCH), data_path(_TOKENIZER)
    for needed in (path, tokenizer):
        if not needed.exists():
            parser.error(f"{needed} is missing: run python -m scripts.fetch_data")
    cases = list(islice(corpora.maskbench(path), 0, None, options.step))
    say, good = partial(print, flush=True), True
    found: dict[ArmName, Sums] = {}
    with options.statuses.open("w", encoding="utf-8") as statuses:
        for arm in options.arm or ARMS:
            found[arm] = sums = Sums()
            its_cases = cases[:: options.xgrammar_step] if arm == "xgrammar's builtin" else cases
            for case, outcome in run_all(arm, its_cases, tokenizer, options.seconds, masked=True):
                verdict = Verdict.of(case, outcome)
                sums.add(verdict, outcome.mask_us)
                statuses.write(json.dumps(verdict.to_json(arm), ensure_ascii=False) + "\n")
            print(f"{arm}: {sums.passing:.2%} passing", file=sys.stderr, flush=True)
    print_table(cases, found, say)
    for arm, sums in found.items():
        if arm.startswith("ours"):
            good = print_promises(cases, arm, sums, say) and good
    return int(not good)


def print_table(cases: Sequence[Case], found: dict[ArmName, Sums], say: Say) -> None:
    """Print a row for each arm."""
    valid = sum(instance.valid for case in cases for instance in case.instances)
    invalid = sum(len(case.instances) for case in cases) - valid
    say(f"{len(cases):,} schemas, {valid:,} valid and {invalid:,} invalid instances. In brackets: schemas.\n")
    say(
        "| | schemas | passing | invalid accepted | of these unnamed | valid rejected | unsatisfiable | refused "
        "| timeout | died | compile ms p50 | p99 | max | mask us p50 | p99 |"
    )
    say("|---|" + "--:|" * 14)
    for arm, sums in found.items():
        status, create, mask = sums.statuses, sums.create_ms(), sums.mask_us()
        cells = [
            _TITLES[arm],
            f"{len(sums.verdicts):,}",
            f"**{sums.passing:.2%}**",
            _instances([verdict.invalid for verdict in sums.verdicts]),
            _instances([verdict.invalid for verdict in sums.silent]),
            _instances([verdict.rejected for verdict in sums.verdicts]),
            *(f"{status[one]}" for one in ("unsatisfiable", "refused", "timeout", "died")),
            f"{create[0]:.1f}",
            f"{create[1]:.0f}",
            f"{create[2]:.0f}",
            f"{mask[0]:.1f}",
            f"{mask[1]:.0f}",
        ]
        say(f"| {' | '.join(cells)} |")


def _instances(counts: Sequence[int]) -> str:
    """Instances, and in brackets their schemas."""
    return f"{sum(counts):,} ({sum(map(bool, counts))})"


def print_promises(cases: Sequence[Case], arm: ArmName, sums: Sums, say: Say) -> bool:
    """Print what one of our arms did not pass, by reason; return False if a promise is broken.

    The promises: no call that dies, no invalid instance that coverage does not name, and no schema called
    unsatisfiable that has an instance.
    """
    say(f"\n## {_TITLES[arm]}\n")
    by_name = {case.name: case for case in cases}
    good = True
    for status in STATUSES[1:]:
        for verdict in sums.verdicts:
            if verdict.status != status:
                continue
            note = verdict.reason or "; ".join(verdict.relaxed[:1])
            if status == "unsatisfiable" and (instance := disproof(by_name[verdict.name])):
                note, good = f"**but this does: {instance}**", False
            say(f"* {status}: {verdict.name}: {note[:160]}")
    builtin = [verdict.name for verdict in sums.verdicts if verdict.builtin]
    say(f"\nLLGuidance's own converter is used for {len(builtin)} of them: {', '.join(builtin) or 'none'}.")
    return good and not sums.silent and not sums.statuses["died"]


if __name__ == "__main__":
    sys.exit(main())
