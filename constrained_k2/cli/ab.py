"""Compares your server's answers with and without the constraint.

Sends the same requests to two or more arms in turn and compares the answers in pairs: metrics of K2 Vendor Verifier,
what they miss, and latencies. Everything is stored in --output; an interrupted run resumes when it is started again.

An arm is unconstrained, constrained, nearest, llguidance or xgrammar; NAME=URL; or NAME={JSON} with url, model, body
(added to each request), preset, api_key_env. Samples are K2 Vendor Verifier's or your own, or BFCL files.

Exit code 1 if a constrained arm wrote something wrong in form, omitted a required call, got no answer, or is worse than
the baseline in any figure that the report calls better or worse (99 % interval of the difference); 2 for bad use.

example: constrained-k2 ab http://localhost:8000 --samples samples.jsonl --temperature 0.6
or: constrained-k2 ab --serve checkpoint/    (a small one, on vLLM servers of this machine, with vLLM's strict level)
or, with a third arm: --arm unconstrained --arm constrained --arm stock=http://localhost:8001
"""

import argparse
import json
import math
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from constrained_k2.cli.reading import WIRE_FORMATS, natural, positive
from constrained_k2.errors import InvalidRequest

if TYPE_CHECKING:
    from constrained_k2.evaluation.ab.arms import Arm
    from constrained_k2.evaluation.ab.directory import RunDirectory
    from constrained_k2.evaluation.ab.loaders import BadLine
    from constrained_k2.evaluation.sample import Sample

_NAME_A_SERVER = "Give a server's address, or --arm NAME=URL"
_DEMO = "scripts/demo.sh in a clone of the repository makes a small model, serves it and compares"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    add = parser.add_argument
    add("url", metavar="URL", nargs="?", help="the server of arms without an address")
    add("--serve", type=Path, metavar="DIR", help="a checkpoint to serve here: three arms of ours, vLLM's strict level")
    add("--arm", action="append", default=[], help="repeatable (default: unconstrained and constrained)")
    add("--baseline", metavar="NAME", help="the arm to compare with (default: unconstrained)")
    add("--model", help="the requested model (default: each server's first)")
    add("--samples", type=Path, metavar="FILE", help="(default: the bundled samples, a third of them adversarial)")
    add("--official", type=Path, metavar="FILE", help="the verifier's results of a reference, for f1")
    add("--count", type=positive, default=300, help="bundled samples (default: %(default)s)")
    formats = "wire format of the models, which tells the ids of right calls (default: %(default)s)"
    add("--format", choices=WIRE_FORMATS, default="kimi-k2", help=formats)
    add("--output", type=Path, default=Path("ab_output"), help="directory (default: %(default)s)")
    add("--repetitions", type=positive, default=1, help="of each sample (default: %(default)s)")
    add("--temperature", type=float, help="(default: the sample's, or the server's; 0.7 with --serve)")
    add("--max-tokens", type=positive, default=2048, help="of samples without a limit")
    add("--seed", type=int, default=0, help="of sampling, bundled samples and intervals")
    again = "samples that the constrained arm is asked again, for what the constraint changed (default: %(default)s)"
    add("--explained", type=natural, default=300, metavar="N", help=again)
    add("--tokenizer", type=Path, metavar="DIR", help="of the model: without it that is left out")
    add("--concurrency", type=positive, default=8, help="requests at a time (default: %(default)s)")
    add("--timeout", type=float, default=600, metavar="S", help="seconds for one attempt")
    add("--retry-failed", action="store_true", help="on resuming, repeat failed requests")
    add("--score-only", type=Path, metavar="DIR", help="send nothing; score and report a run again")
    add("--inspect", type=Path, metavar="DIR", help="also write the answers as logs for Inspect's viewer, one per arm")
    add("--json", action="store_true", help="print the scores as JSON")


def run(options: argparse.Namespace) -> int:
    """Send the remaining requests, score, and report; 1 if there are findings."""
    from constrained_k2.evaluation.ab.directory import lock, open_run
    from constrained_k2.evaluation.ab.export_inspect import write_inspect_logs
    from constrained_k2.evaluation.ab.report import show, write_reports
    from constrained_k2.evaluation.ab.results import score

    try:
        directory = _send(options) if options.score_only is None else open_run(options.score_only)
    except KeyboardInterrupt:
        print("constrained-k2: the same command resumes this run", file=sys.stderr)
        raise
    with _file_errors_named(directory.path), lock(directory.path):
        results = score(directory, baseline=options.baseline)
        paths = write_reports(results)
    if options.inspect is not None:
        with _file_errors_named(options.inspect):
            paths += write_inspect_logs(results, options.inspect)
    if options.json:
        print(json.dumps(results.to_json(), indent=2))
    else:
        show(results, paths)
    return int(bool(results.findings))


def _send(options: argparse.Namespace) -> "RunDirectory":
    from constrained_k2.evaluation.ab.directory import Sampling, begin
    from constrained_k2.evaluation.ab.runner import AttemptLimits
    from constrained_k2.evaluation.ab.serving import TEMPERATURE, Sending
    from constrained_k2.vocabulary.vocabulary import Vocabulary

    if not 0 < options.timeout < math.inf:
        raise InvalidRequest("must be more than 0 and finite", "--timeout")
    limits = AttemptLimits(seconds=options.timeout, concurrency=options.concurrency)
    wire_format = WIRE_FORMATS[options.format]
    _check_servers(options)
    is_served = options.serve is not None
    temperature = TEMPERATURE if is_served and options.temperature is None else options.temperature
    sampling = Sampling(temperature, options.max_tokens, options.repetitions, options.seed)
    source = f"{options.count} bundled samples" if options.samples is None else str(options.samples)
    arms = [] if is_served else _arms(options)
    directory = begin(options.output, source, _samples(options), sampling, wire_format)
    for line in directory.bad_lines[1]:
        print(f"constrained-k2: {source}: {line}", file=sys.stderr)
    how: dict[str, Any] = {"limits": limits, "retry_failed": options.retry_failed, "explained": options.explained}
    say = partial(print, file=sys.stderr, flush=True)
    sent = Sending(directory, **how, is_shown=not options.json, say=say)
    with _file_errors_named(directory.path):
        if is_served:
            try:
                sent.serve(options.serve)
            except RuntimeError as error:
                raise InvalidRequest(str(error), "vLLM on this machine") from error
        else:
            sent.ask(arms)
            if options.tokenizer is not None:
                sent.explain(arms, Vocabulary.from_pretrained(options.tokenizer))
            elif options.explained:
                say("What the constraint changed is left out: it needs --tokenizer DIR")
    return directory


@contextmanager
def _file_errors_named(path: Path) -> Iterator[None]:
    failed: BaseException | None = None
    try:
        yield
    except* (OSError, sqlite3.Error) as errors:
        failed = errors
    while isinstance(failed, BaseExceptionGroup):
        failed = failed.exceptions[0]
    if failed is not None:  # raised inside ``except*``, it would become a group
        raise InvalidRequest(f"cannot be read or written: {failed}", str(path), "The same command resumes") from failed


def _check_servers(options: argparse.Namespace) -> None:
    if options.serve is None:
        if options.url is None and not options.arm:
            raise InvalidRequest("no server is named", "URL", f"{_NAME_A_SERVER}, or --serve DIR; {_DEMO}")
        return
    _refuse(options, ("url", "arm", "model"), "--serve starts its own servers", "Leave out one of the two")
    if not (options.serve / "config.json").is_file():
        raise InvalidRequest(f"{options.serve} holds no checkpoint", "--serve", f"Name its directory; {_DEMO}")
    for name in ("torch", "vllm"):
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _arms(options: argparse.Namespace) -> "list[Arm]":
    from constrained_k2.evaluation.ab.arms import parse_arm

    arms = [parse_arm(text, options.url) for text in options.arm or ("unconstrained", "constrained")]
    names = Counter(arm.name for arm in arms)
    if repeated := sorted(name for name, count in names.items() if count > 1):
        raise InvalidRequest(f"given twice: {', '.join(repeated)}", "--arm", "Give every arm another name")
    return [arm if arm.model or not options.model else replace(arm, model=options.model) for arm in arms]


def _samples(options: argparse.Namespace) -> "Iterator[Sample | BadLine]":
    from constrained_k2.evaluation.ab.loaders import read_samples
    from constrained_k2.evaluation.sample import BUNDLED, bundled_bodies, read_sample

    if options.samples is not None:
        return read_samples(options.samples, options.official)
    _refuse(options, ("official",), "no samples are named", "Name their file with --samples")
    bodies = enumerate(bundled_bodies(BUNDLED, options.count, options.seed), 1)
    return (read_sample(body, number) for number, body in bodies)


def _refuse(options: argparse.Namespace, names: Iterable[str], problem: str, remedy: str) -> None:
    for name in names:
        if getattr(options, name):
            raise InvalidRequest(problem, "URL" if name == "url" else f"--{name}", remedy)
