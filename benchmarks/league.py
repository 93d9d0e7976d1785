"""Print the league table of MaskBench's schemas: our grammars beside the engines' own converters.

Every schema is compiled over Kimi's vocabulary, and each of its instances is written under a mask for each token. That
takes about twenty minutes on two cores; `--step 20` takes every 20th schema. xgrammar's converter takes seconds for a
schema, so it gets every 200th of those. Needs scripts/fetch_data.py.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, starmap
from typing import Any, Literal, get_args

import jsonschema
import llguidance
import numpy as np

from benchmarks.report import Cell, table
from benchmarks.schemas import corpora
from benchmarks.schemas.arms import ArmName, Outcome
from benchmarks.schemas.builtin import LLGuidanceBuiltin
from benchmarks.schemas.corpora import Case
from benchmarks.schemas.figures import NO_INSTANCE, run_all
from benchmarks.schemas.walks import walk
from constrained_k2.vocabulary.vocabulary import Vocabulary
from scripts.fetch_data import data_path

TITLES: dict[ArmName, str] = {
    "ours, strict": "constrained_k2, strict tools",
    "ours, llguidance": "constrained_k2, other tools",
    "llguidance's builtin": "LLGuidance's converter",
    "xgrammar's builtin": "xgrammar's converter",
}
_XGRAMMAR_STEP = 200
_WALKS = 200  # of a second opinion
_TOKENIZER = "kimi_k2/tokenizer"
_COLUMNS = (
    "", "schemas", "passing", "invalid accepted", "of these unnamed", "valid rejected", "unsatisfiable", "refused",
    "timeout", "died", "compile ms p50", "p99", "max", "mask us p50", "p99",
)  # fmt: skip
Status = Literal["passing", "unsatisfiable", "refused", "timeout", "died", "invalid accepted", "valid rejected"]
STATUSES: tuple[Status, ...] = get_args(Status)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of an arm on one schema, as MaskBench counts it."""

    name: str  # the schema's id
    status: Status  # the first of the others that holds, else `passing`
    reason: str  # why it is refused or died
    relaxed: tuple[str, ...]  # what the arm itself names as not enforced
    invalid: int  # number of invalid instances accepted
    rejected: int  # number of valid instances rejected
    create_ms: float  # time to build the grammar and a first matcher
    mask_us: np.ndarray[Any, np.dtype[np.float32]]  # time of each mask

    @classmethod
    def of(cls, case: Case, outcome: Outcome) -> "Verdict":
        """Judge an arm's outcome."""
        pairs = list(zip(case.instances, outcome.accepted, strict=False))
        invalid = sum(accepted and not instance.valid for instance, accepted in pairs)
        rejected = sum(instance.valid and not accepted for instance, accepted in pairs)
        status: Status = "passing"
        if outcome.ran_out:
            status = "timeout"
        elif outcome.refusal:
            status = "unsatisfiable" if NO_INSTANCE in outcome.refusal else "refused"
        elif outcome.died:
            status = "died"
        elif invalid:
            status = "invalid accepted"
        elif rejected:
            status = "valid rejected"
        reason, masks = outcome.refusal or outcome.died, np.array(outcome.mask_us, np.float32)
        return cls(case.name, status, reason, outcome.relaxed, invalid, rejected, outcome.create_ms, masks)

    @property
    def is_silent(self) -> bool:
        """True if an invalid instance is accepted, and the arm names nothing that it leaves out."""
        return bool(self.invalid and not self.relaxed)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the arms and print the table. Exit code 1 if one of our arms breaks a promise."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.league", description=__doc__)
    parser.add_argument("--arm", choices=TITLES, action="append", help="only this arm; repeatable")
    parser.add_argument("--step", type=int, default=1, help="take every STEPth schema (default: %(default)s)")
    options = parser.parse_args(arguments)
    path, tokenizer = data_path(corpora.MASKBENCH), data_path(_TOKENIZER)
    for needed in (path, tokenizer):
        if not needed.exists():
            parser.error(f"{needed} is missing: run python -m scripts.fetch_data")
    cases = list(islice(corpora.maskbench(path), 0, None, options.step))
    found: dict[ArmName, list[Verdict]] = {}
    for arm in options.arm or TITLES:
        its_cases = cases[::_XGRAMMAR_STEP] if arm == "xgrammar's builtin" else cases
        found[arm] = list(starmap(Verdict.of, run_all(arm, its_cases, tokenizer, masked=True)))
        print(f"{arm}: {passing(found[arm])} passing", file=sys.stderr, flush=True)
    valid = sum(instance.valid for case in cases for instance in case.instances)
    invalid = sum(len(case.instances) for case in cases) - valid
    print(f"{len(cases):,} schemas, {valid:,} valid and {invalid:,} invalid instances. In brackets: schemas.\n")
    print(table(_COLUMNS, [row(arm, verdicts) for arm, verdicts in found.items()]))
    ours = [(arm, verdicts) for arm, verdicts in found.items() if arm.startswith("ours")]
    good = [print_promises(cases, arm, verdicts) for arm, verdicts in ours]  # all are printed
    return int(not all(good))


def passing(verdicts: Sequence[Verdict]) -> str:
    """Return the share of the schemas that pass."""
    return f"{sum(verdict.status == 'passing' for verdict in verdicts) / len(verdicts):.2%}"


def row(arm: ArmName, verdicts: Sequence[Verdict]) -> list[Cell]:
    """Return an arm's row of the table; what is refused has no grammar to wait for."""
    statuses = Counter(verdict.status for verdict in verdicts)
    created = [verdict.create_ms for verdict in verdicts if not verdict.reason]
    masks = np.concatenate([verdict.mask_us for verdict in verdicts])
    return [
        TITLES[arm],
        len(verdicts),
        f"**{passing(verdicts)}**",
        _instances([verdict.invalid for verdict in verdicts]),
        _instances([verdict.invalid for verdict in verdicts if verdict.is_silent]),
        _instances([verdict.rejected for verdict in verdicts]),
        *(statuses[one] for one in STATUSES[1:5]),
        *np.quantile(created or [0.0], (0.5, 0.99, 1)).tolist(),
        *np.quantile(masks if len(masks) else [0.0], (0.5, 0.99)).tolist(),
    ]


def _instances(counts: Sequence[int]) -> str:
    """Instances, and in brackets their schemas."""
    return f"{sum(counts):,} ({sum(map(bool, counts))})"


def print_promises(cases: Sequence[Case], arm: ArmName, verdicts: Sequence[Verdict]) -> bool:
    """Print what one of our arms did not pass, by reason; return False if a promise is broken.

    The promises: no call that dies, no invalid instance that coverage does not name, and no schema called
    unsatisfiable that has an instance.
    """
    print(f"\n## {TITLES[arm]}\n")
    by_name = {case.name: case for case in cases}
    good = True
    for status in STATUSES[1:]:
        for verdict in verdicts:
            if verdict.status != status:
                continue
            note = verdict.reason or "; ".join(verdict.relaxed[:1])
            if status == "unsatisfiable" and (instance := disproof(by_name[verdict.name])):
                note, good = f"**but this does: {instance}**", False
            print(f"* {status}: {verdict.name}: {note[:160]}")
    return good and not any(verdict.is_silent or verdict.status == "died" for verdict in verdicts)


def disproof(case: Case) -> str:
    """Return an instance of a schema as JSON, or nothing if none is found.

    The candidates are MaskBench's instances, the values that the schema mentions, and random instances of a wider
    grammar: LLGuidance's converter, which leaves out what it does not know, and takes oneOf as anyOf.
    """
    schema = json.loads(case.schema)
    validator: Any = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)(schema)
    for text in (*(instance.text for instance in case.instances), *_mentioned(schema), *_wider(case.schema)):
        if validator.is_valid(json.loads(text)):
            return text
    return ""


def _mentioned(schema: Any) -> Iterator[str]:
    """Yield the values of ``const``, ``enum``, ``default`` and ``examples`` anywhere in a schema, and plain ones."""
    yield from ("null", "true", "false", "0", "1", '""', '"a"', "[]", "{}", "[0]", '{"a":0}')
    rest = [schema]
    while rest:
        part = rest.pop()
        rest += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        if isinstance(part, dict):
            values = [part[key] for key in ("const", "default") if key in part]
            values += [value for key in ("enum", "examples") if isinstance(part.get(key), list) for value in part[key]]
            yield from map(json.dumps, values)


def _wider(schema: str) -> Iterator[str]:
    vocabulary = Vocabulary.of_bytes()
    text = llguidance.LLMatcher.grammar_from_json_schema(schema, overrides={"lenient": True, "coerce_one_of": True})
    try:
        grammar = LLGuidanceBuiltin(vocabulary).compile_grammar(text)
    except ValueError:
        return  # it finds no value either, or has no such grammar
    for seed in range(_WALKS):
        walked = walk(grammar, vocabulary, json.loads(schema), seed)
        if walked.ended:
            yield walked.text


if __name__ == "__main__":
    sys.exit(main())
