"""Measure coverage, soundness and cost of JSON Schema compilation (about half an hour; needs scripts/fetch_data.py).

Prints every figure about schemas in the docs; --part prints some in at most 15 minutes. Exit code 1 if a promise is
broken.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.report import Cell, table
from benchmarks.schemas import corpora
from benchmarks.schemas.arms import ARMS, Arm, Work
from benchmarks.schemas.corpora import Case, Instance
from benchmarks.schemas.figures import SuiteFigures, run_all, signature, status_of
from benchmarks.schemas.walks import walk, walk_over
from constrained_k2.vocabulary.vocabulary import Vocabulary
from scripts.fetch_data import data_path

BASELINE = Path(__file__).resolve().parents[2] / "tests" / "schema" / "baseline.json"
PARTS = ("suite", "tools", "orders", "coverage", "walks", "maskbench", "hostile")
_OURS = ARMS[0]
_WALKS = {"walks": 10_000, "maskbench": 20_000}
_MASKBENCH_SCHEMAS = 2_000
_TOKENIZER = "kimi_k2/tokenizer"
_SLOWEST_MS = 1_000
_LARGEST_MB = 256
_NEEDED = {
    corpora.SUITE: {"suite", "walks"},
    corpora.TOOLS: {"tools", "orders", "coverage", "walks"},
    corpora.WALLE: {"coverage", "walks"},
    _TOKENIZER: {"tools"},
    corpora.MASKBENCH: {"maskbench"},
}
"""Path in the data folder -> the parts that read it."""
say = partial(print, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print, or write the baseline."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.schemas", description=__doc__)
    parser.add_argument("--part", choices=PARTS, action="append", help="only this part; repeatable")
    parser.add_argument("--walks", type=int, help="random walks (default: 10,000, and 20,000 over MaskBench)")
    parser.add_argument("--write-baseline", action="store_true", help="only write tests/schema/baseline.json")
    options = parser.parse_args(arguments)
    parts = {"suite"} if options.write_baseline else set(options.part or PARTS)
    for path, users in _NEEDED.items():
        if users & parts and not data_path(path).exists():
            parser.error(f"{data_path(path)} is missing: run python -m scripts.fetch_data")
    if options.write_baseline:
        found = run_all(_OURS, corpora.suite(data_path(corpora.SUITE)))
        signatures = {case.name: signature(case, outcome) for case, outcome in found}
        BASELINE.write_text(json.dumps(signatures, indent=0, ensure_ascii=False) + "\n")
        return 0
    return int(not measure(parts, options.walks))


def measure(parts: set[str], walks: int | None) -> bool:
    """Measure and print; return False if a promise is broken."""
    groups = list(corpora.suite(data_path(corpora.SUITE))) if _NEEDED[corpora.SUITE] & parts else []
    tools = list(corpora.tools(data_path(corpora.TOOLS))) if _NEEDED[corpora.TOOLS] & parts else []
    verifier = list(corpora.walle(data_path(corpora.WALLE))) if _NEEDED[corpora.WALLE] & parts else []
    good = True
    if "suite" in parts:
        good = suite_table(groups)
    if "tools" in parts:
        tools_table(tools)
    if "orders" in parts:
        orders_table(tools)
    if "coverage" in parts:
        coverage_lines("mcp-tools", tools)
        coverage_lines("kvv-walle, each as a property of a tool", verifier)
    if "walks" in parts:
        good = walks_line([*groups, *tools, *verifier], walks or _WALKS["walks"], "object") and good
    if "maskbench" in parts:
        cases = list(corpora.maskbench(data_path(corpora.MASKBENCH)))
        sample = cases[:: max(1, len(cases) // _MASKBENCH_SCHEMAS)][:_MASKBENCH_SCHEMAS]
        good = walks_line(sample, walks or _WALKS["maskbench"], "any") and good
    if "hostile" in parts:
        good = hostile_table() and good
    return good


def suite_table(cases: list[Case]) -> bool:
    """Compare all arms on the public suite; return False if ours accepts what it should not, and names no reason."""
    figures = {name: SuiteFigures.of(run_all(name, cases)) for name in ARMS}
    rows: list[tuple[Cell, ...]] = []
    for name, its in figures.items():
        invalid, valid = its.count("invalid", accepted=True), its.count("valid", accepted=False)
        of_invalid = f"{invalid} of {invalid + its.count('invalid', accepted=False)}"
        of_valid = f"{valid} of {valid + its.count('valid', accepted=True)}"
        silent = its.count("invalid", accepted=True, status="whole")
        statuses = (its.groups[status] for status in ("whole", "relaxed", "refused"))
        rows.append((name, *statuses, of_invalid, silent, of_valid))
    columns = "whole", "relaxed", "refused", "invalid accepted", "of these with nothing relaxed", "valid rejected"
    say(f"\n## The JSON-Schema-Test-Suite\n\n{table(('arm', *columns), rows)}")
    ours = figures[_OURS]
    accepted = ours.count("valid", accepted=True)
    total = accepted + ours.count("valid", accepted=False)
    unchecked = sum(": invalid " in line and "/format#" in line for line in ours.wrong)
    say(
        f"\nOurs accepts {accepted} of {total} valid instances ({accepted / total:.1%}; "
        f"{accepted / (total - unchecked):.1%} without the {unchecked} of format.json that want formats not to be "
        f"checked, where optional/format wants the opposite). Of the groups that ours refuses, {ours.empty} have no "
        "value that satisfies them."
    )
    return not ours.count("invalid", accepted=True, status="whole")


def tools_table(cases: list[Case]) -> None:
    """Print coverage and cost of real tools with the real vocabulary."""
    cases = _written(cases)
    rows: list[tuple[Cell, ...]] = []
    for name in ARMS:
        outcomes = [outcome for _, outcome in run_all(name, cases, data_path(_TOKENIZER), masked=True)]
        statuses = [status_of(outcome) for outcome in outcomes]
        create = [outcome.create_ms for outcome in outcomes if not outcome.refusal]
        masks = [sample for outcome in outcomes for sample in outcome.mask_us]
        counts = (statuses.count(status) for status in ("whole", "relaxed", "refused"))
        times = (float(np.percentile(found, share)) for found in (create, masks) for share in (50, 99, 100))
        rows.append((name, *counts, *times))
    columns = "whole", "relaxed", "refused", "create ms p50", "p99", "max", "mask us p50", "p99", "max"
    say(f"\n## Tools of public MCP servers, real vocabulary\n\n{table(('arm', *columns), rows)}")


def orders_table(cases: list[Case]) -> None:
    """Print which valid calls of real tools may be written in the schema's order of keys, and in another one."""
    written = _written(cases)
    moved = [replace(case, instances=tuple(filter(None, map(_in_another_order, case.instances)))) for case in written]
    moved = [case for case in moved if case.instances]
    rows: list[tuple[Cell, ...]] = []
    for name in ARMS:
        taken = [
            [accepted for _, outcome in run_all(name, each) for accepted in outcome.accepted]
            for each in (written, moved)
        ]
        rows.append((name, *(f"{sum(each)} of {len(each)}" for each in taken)))
    columns = "arm", "calls in the schema's order", "calls in another order"
    say(f"\n## Orders of keys, tools of public MCP servers\n\n{table(columns, rows)}")


def _in_another_order(instance: Instance) -> Instance | None:
    """Return a call with the keys of its objects in the reverse order; None if no object has two."""
    value = json.loads(instance.text)
    moved = json.dumps(_reversed(value), ensure_ascii=False, separators=(",", ":"))
    return None if moved == instance.text else replace(instance, text=moved)


def _reversed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _reversed(value[key]) for key in reversed(value)}
    return [_reversed(item) for item in value] if isinstance(value, list) else value


def _written(cases: list[Case]) -> list[Case]:
    """Return the tools, those that LLGuidance converts with two instances: compact, in the schema's order."""
    from benchmarks.schemas.builtin import LLGuidanceBuiltin

    vocabulary = Vocabulary.of_bytes()
    builtin = LLGuidanceBuiltin(vocabulary)
    found = []
    for case in cases:
        try:
            grammar = builtin.compile(case.schema)
        except ValueError:
            found.append(case)
            continue
        walks = (walk(grammar, vocabulary, json.loads(case.schema), seed) for seed in range(2))
        values = [json.loads(walked.text) for walked in walks if walked.ended]
        texts = (json.dumps(value, ensure_ascii=False, separators=(",", ":")) for value in values)
        found.append(replace(case, instances=tuple(Instance(text, valid=True) for text in texts)))
    return found


def coverage_lines(name: str, cases: list[Case]) -> None:
    """Print how many schemas are enforced with nothing relaxed, and the others."""
    found = [(case, outcome, status_of(outcome)) for case, outcome in run_all(_OURS, cases)]
    statuses = [status for _, _, status in found]
    taken = len(cases) - statuses.count("refused")
    say(f"\n{name}: {len(cases)} schemas, {taken} compile, {statuses.count('whole')} with nothing relaxed.")
    for case, outcome, status in found:
        if status != "whole":
            say(f"* {case.name}: {outcome.refusal or '; '.join(outcome.relaxed)}")


def hostile_table() -> bool:
    """Check that each hostile schema gives a grammar or a clear error within time and memory limits."""
    rows: list[tuple[Cell, ...]] = []
    good = True
    for case in corpora.hostile():
        with Arm(_OURS, None) as arm:
            outcome = arm.run(Work(case.schema, weighed=True))
        result = outcome.refusal or (f"relaxed: {outcome.relaxed[0]}" if outcome.relaxed else "a grammar")
        rows.append((case.name, outcome.create_ms, outcome.memory_mb, result[:110]))
        good = good and outcome.create_ms <= _SLOWEST_MS and outcome.memory_mb <= _LARGEST_MB
    say(f"\n## Hostile schemas\n\n{table(('schema', 'ms', 'MB', 'result'), rows)}")
    say(f"\nAll within {_SLOWEST_MS} ms and {_LARGEST_MB} MiB: {'yes' if good else '**no**'}.")
    return good


def walks_line(cases: list[Case], count: int, root: Literal["object", "any"]) -> bool:
    """Run random walks, judge those over schemas with nothing relaxed, and return True if none is at fault."""
    from constrained_k2.compiler.compiler import Compiler
    from constrained_k2.compiler.shared import GrammarOptions

    compiler = Compiler(Vocabulary.of_bytes(), undeclared_keys="allow", cache_bytes=1 << 20)
    objects = [case for case in cases if case.schema.startswith("{")]
    found = walk_over(objects, count, compiler, GrammarOptions(root=root))
    for fault in found.faults:
        say(f"* {fault}")
    say(f"\n{found}")
    return not found.faults


if __name__ == "__main__":
    sys.exit(main())
