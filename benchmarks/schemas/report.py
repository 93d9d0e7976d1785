"""Measures every schema figure of the docs in one run, and prints them as Markdown."""

import json
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Literal

from benchmarks.schemas import corpora
from benchmarks.schemas.arms import ARMS, Arm, ArmName, Outcome, Work
from benchmarks.schemas.corpora import Case, Instance
from benchmarks.schemas.figures import SuiteFigures, percentile, run_all, signature, status_of
from benchmarks.schemas.walks import texts, walk, walk_over
from constrained_k2.vocabulary.vocabulary import Vocabulary

Say = Callable[[str], None]
PARTS = ("suite", "tools", "coverage", "walks", "maskbench", "hostile")
_WALKS = {"walks": 10_000, "maskbench": 20_000}
_MASKBENCH_SCHEMAS = 2_000
_TOKENIZER = "kimi_k2/tokenizer"
_SLOWEST_MS = 1_000
_LARGEST_MB = 256


def suite_table(cases: list[Case], say: Say) -> dict[ArmName, list[tuple[Case, Outcome]]]:
    """Compare all arms on the public suite."""
    say("\n## The JSON-Schema-Test-Suite\n")
    say(
        "| arm | groups whole | relaxed | refused | invalid accepted | of these with nothing relaxed | valid rejected |"
    )
    say("|---|--:|--:|--:|--:|--:|--:|")
    found: dict[ArmName, list[tuple[Case, Outcome]]] = {}
    figures: dict[ArmName, SuiteFigures] = {}
    for name in ARMS:
        found[name] = list(run_all(name, cases))
        figures[name] = SuiteFigures()
        for case, outcome in found[name]:
            figures[name].add(case, outcome)
        its = figures[name]
        silent = its.count("invalid", accepted=True, status="whole")
        invalid = its.count("invalid", accepted=True)
        valid = its.count("valid", accepted=False)
        say(
            f"| {name} | {its.groups['whole']} | {its.groups['relaxed']} | {its.groups['refused']} "
            f"| {invalid} of {invalid + its.count('invalid', accepted=False)} | {silent} "
            f"| {valid} of {valid + its.count('valid', accepted=True)} |"
        )
    ours = figures["ours, llguidance"]
    accepted, rejected = ours.count("valid", accepted=True), ours.count("valid", accepted=False)
    unchecked = sum(": invalid " in line and "/format#" in line for line in ours.wrong)
    say(
        f"\nOurs accepts {accepted} of {accepted + rejected} valid instances ({accepted / (accepted + rejected):.1%}; "
        f"{accepted / (accepted + rejected - unchecked):.1%} without the {unchecked} of format.json that want formats "
        "not to be checked, where optional/format wants the opposite)."
    )
    compiled = ours.required["whole"] + ours.required["relaxed"]
    total = compiled + ours.required["refused"]
    say(
        f"Of {total} groups of required features that have an instance, {compiled} compile ({compiled / total:.1%}), "
        f"{ours.required['whole']} with nothing relaxed."
    )
    say(f"Refused: {', '.join(f'{count} {reason}' for reason, count in ours.refusals.most_common())}.")
    by_file: dict[str, int] = {}
    for line in ours.wrong:
        by_file[line.split("#")[0].split("/", 1)[1]] = by_file.get(line.split("#")[0].split("/", 1)[1], 0) + 1
    say(f"Valid instances not written, by file: {', '.join(f'{file} {n}' for file, n in sorted(by_file.items()))}.")
    say(_compared_with_llguidance(found))
    return found


def _compared_with_llguidance(found: dict[ArmName, list[tuple[Case, Outcome]]]) -> str:
    """Summarize our results for the schemas that LLGuidance's builtin converter handles soundly."""
    sound = refused = unsound = 0
    for (case, builtin), (_, ours) in zip(found["llguidance's builtin"], found["ours, llguidance"], strict=True):
        if not builtin.refusal and not builtin.accepts_invalid(case):
            sound += 1
            refused += bool(ours.refusal)
            unsound += ours.accepts_invalid(case)
    return (
        f"LLGuidance's builtin converter compiles {sound} groups and accepts nothing invalid in them: of these, ours "
        f"refuses {refused} and accepts something invalid in {unsound}."
    )


def tools_table(cases: list[Case], tokenizer: Path | None, seconds: float, say: Say) -> None:
    """Print coverage and cost of real tools with the real vocabulary."""
    say("\n## Tools of public MCP servers, real vocabulary\n")
    cases = _written(cases)
    say("| arm | whole | relaxed | refused | create ms p50 | p99 | max | mask us p50 | p99 | max |")
    say("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for name in ARMS:
        found = list(run_all(name, cases, tokenizer, seconds, masked=True))
        counts = {
            status: sum(status_of(outcome) == status for _, outcome in found)
            for status in ("whole", "relaxed", "refused")
        }
        create = [outcome.create_ms for _, outcome in found if not outcome.refusal]
        masks = [sample for _, outcome in found for sample in outcome.mask_us]
        say(
            f"| {name} | {counts['whole']} | {counts['relaxed']} | {counts['refused']} | {percentile(create, 0.5):.1f} "
            f"| {percentile(create, 0.99):.1f} | {max(create):.1f} | {percentile(masks, 0.5):.1f} "
            f"| {percentile(masks, 0.99):.1f} | {max(masks):.0f} |"
        )


def _written(cases: list[Case]) -> list[Case]:
    """Return the tools, those that LLGuidance converts with two instances: compact, in the schema's order."""
    from benchmarks.baselines.json_schema import LLGuidanceBuiltin

    vocabulary = Vocabulary.of_bytes()
    builtin = LLGuidanceBuiltin(vocabulary)
    found = []
    for case in cases:
        try:
            grammar = builtin.compile(case.schema)
        except ValueError:
            found.append(case)
            continue
        schema = json.loads(case.schema)
        written = texts(walk(grammar, vocabulary, schema, seed) for seed in range(2))
        found.append(replace(case, instances=tuple(Instance(text, valid=True) for text in written)))
    return found


def coverage_table(name: str, cases: list[Case], say: Say) -> None:
    """Print how many schemas are enforced with nothing relaxed."""
    found = list(run_all("ours, llguidance", cases))
    statuses = [status_of(outcome) for _, outcome in found]
    whole, relaxed = statuses.count("whole"), statuses.count("relaxed")
    say(f"{name}: {len(cases)} schemas, {whole + relaxed} compile, {whole} with nothing relaxed.")
    for case, outcome in found:
        if status_of(outcome) != "whole":
            say(f"* {case.name}: {outcome.refusal or '; '.join(outcome.relaxed)}")


def hostile_table(cases: list[Case], say: Say) -> bool:
    """Check that each hostile schema gives a grammar or a clear error within time and memory limits."""
    say("\n## Hostile schemas\n")
    say("| schema | ms | MB | result |")
    say("|---|--:|--:|---|")
    good = True
    for case in cases:
        with Arm("ours, llguidance", None) as arm:
            outcome = arm.run(Work(case.schema, weighed=True))
        result = outcome.refusal or (f"relaxed: {outcome.relaxed[0]}" if outcome.relaxed else "a grammar")
        say(f"| {case.name} | {outcome.create_ms:.0f} | {outcome.memory_mb:.0f} | {result[:110]} |")
        good = good and outcome.create_ms <= _SLOWEST_MS and outcome.memory_mb <= _LARGEST_MB
    say(f"\nAll within {_SLOWEST_MS} ms and {_LARGEST_MB} MB: {'yes' if good else '**no**'}.")
    return good


def walks_line(cases: list[Case], count: int, root: Literal["object", "any"], say: Say) -> bool:
    """Run random walks, judge those over schemas with nothing relaxed, and return True if none is at fault."""
    from constrained_k2.compiler.compiler import Compiler
    from constrained_k2.compiler.shared import GrammarOptions

    compiler = Compiler(Vocabulary.of_bytes(), undeclared_keys="allow", cache_bytes=1 << 20)
    objects = [case for case in cases if case.schema.startswith("{")]
    found = walk_over(objects, count, compiler, GrammarOptions(root=root))
    for fault in found.faults:
        say(f"* {fault}")
    say(str(found))
    return not found.faults


def baseline(shared: Path) -> dict[str, str]:
    """Return the signature of every group of the suite, to be compared with later ones.

    Raises:
        FileNotFoundError: The suite is missing.
    """
    found = run_all("ours, llguidance", corpora.suite(shared / corpora.SUITE))
    return {case.name: signature(case, outcome) for case, outcome in found}


def measure(shared: Path, parts: Collection[str], *, walks: int | None, seconds: float, say: Say) -> bool:
    """Measure and print; return False if a promise is broken.

    Args:
        shared: The data folder.
        parts: Some of ``PARTS``.
        walks: Number of random walks of a part; None for the numbers in the docs.
        seconds: Time limit of an arm for a tool's schema.
        say: Prints a line.

    Raises:
        FileNotFoundError: The data of one of these parts are missing.
    """
    needed = {corpora.SUITE: {"suite", "walks"}, corpora.TOOLS: {"tools", "coverage", "walks"}}
    needed |= {corpora.WALLE: {"coverage", "walks"}, _TOKENIZER: {"tools"}, corpora.MASKBENCH: {"maskbench"}}
    for path, users in needed.items():
        if users & set(parts) and not (shared / path).exists():
            raise FileNotFoundError(str(shared / path))
    groups = list(corpora.suite(shared / corpora.SUITE)) if needed[corpora.SUITE] & set(parts) else []
    tools = list(corpora.tools(shared / corpora.TOOLS)) if needed[corpora.TOOLS] & set(parts) else []
    verifier = list(corpora.walle(shared / corpora.WALLE)) if needed[corpora.WALLE] & set(parts) else []
    good = True
    if "suite" in parts:
        found = suite_table(groups, say)["ours, llguidance"]
        good = not any(outcome.accepts_invalid(case) for case, outcome in found if status_of(outcome) == "whole")
    if "tools" in parts:
        tools_table(tools, shared / _TOKENIZER, seconds, say)
    if "coverage" in parts:
        say("")
        coverage_table("mcp-tools", tools, say)
        coverage_table("kvv-walle, each as a property of a tool", verifier, say)
    if "walks" in parts:
        say("")
        good = walks_line([*groups, *tools, *verifier], walks or _WALKS["walks"], "object", say) and good
    if "maskbench" in parts:
        say("")
        cases = list(corpora.maskbench(shared / corpora.MASKBENCH))
        sample = cases[:: max(1, len(cases) // _MASKBENCH_SCHEMAS)][:_MASKBENCH_SCHEMAS]
        good = walks_line(sample, walks or _WALKS["maskbench"], "any", say) and good
    if "hostile" in parts:
        good = hostile_table(list(corpora.hostile()), say) and good
    return good
