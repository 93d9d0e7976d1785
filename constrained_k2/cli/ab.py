"""``constrained-k2 ab``: the same requests to two or more arms, scored as the field scores them."""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from constrained_k2.cli.reading import positive, read_json
from constrained_k2.errors import InvalidRequest

if TYPE_CHECKING:
    from constrained_k2.evaluation.ab.arms import Arm
    from constrained_k2.evaluation.ab.directory import RunDirectory
    from constrained_k2.evaluation.ab.endpoint import Limits
    from constrained_k2.evaluation.ab.loaders import BadLine
    from constrained_k2.evaluation.ab.sample import Sample


def add_parser(verbs: Any) -> None:
    """Add this verb."""
    parser = verbs.add_parser(
        "ab",
        help="does the constraint make your Kimi better, and what does it cost?",
        description="Sends the same requests to two or more arms, in turn, and compares the answers in pairs: the "
        "metrics of K2 Vendor Verifier, what they miss, and times. Everything is kept in --output; a run that was "
        "ended in any way goes on where it was when it is started again. Exit code 1 if a constrained arm wrote "
        "something wrong in form, left out a call that was due, got no answer, or is worse than the baseline beyond "
        "chance (the 99 % interval of the difference); 2 for bad use.",
        epilog="example: constrained-k2 ab    (a small trained model on vLLM servers of this machine)    "
        "or: constrained-k2 ab http://localhost:8000 --samples samples.jsonl --temperature 0.6    "
        "or, with a third arm: --arm unconstrained --arm constrained --arm stock=http://localhost:8001",
    )
    parser.add_argument(
        "url",
        metavar="URL",
        nargs="?",
        help="the server of arms that name none; without it and --arm a small trained model is served here, and a "
        "third arm is vLLM's own strict level",
    )
    parser.add_argument(
        "--arm",
        action="append",
        default=[],
        metavar="ARM",
        help="unconstrained, constrained, llguidance, xgrammar; NAME=URL; or NAME={JSON} with url, model, body (added "
        "to each request), preset, api_key_env. May be given again (default: unconstrained and constrained)",
    )
    parser.add_argument("--arms", metavar="FILE", help="a JSON list of such objects, each with its name")
    parser.add_argument(
        "--baseline", metavar="NAME", help="the arm to hold the others against (default: unconstrained)"
    )
    parser.add_argument("--model", help="the model to ask for (default: each server's first)")
    parser.add_argument(
        "--samples",
        type=Path,
        metavar="FILE",
        help="K2 Vendor Verifier's or own samples, BFCL files, schema cases, or tools with prompts "
        "(default: a built-in set with an adversarial part)",
    )
    parser.add_argument("--answers", type=Path, metavar="FILE", help="BFCL's possible answers, if they lie elsewhere")
    parser.add_argument("--official", type=Path, metavar="FILE", help="the verifier's results of a reference, for f1")
    parser.add_argument("--count", type=positive, default=300, help="built-in samples (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path("ab_output"), help="directory (default: %(default)s)")
    parser.add_argument("--repetitions", type=positive, default=1, help="of each sample (default: %(default)s)")
    parser.add_argument(
        "--temperature",
        type=float,
        help="of all requests (default: the sample's, or the server's; 0.7 for the model served here)",
    )
    parser.add_argument("--max-tokens", type=positive, default=2048, help="where a sample says none")
    parser.add_argument("--seed", type=int, default=0, help="of sampling, built-in samples and intervals")
    parser.add_argument("--concurrency", type=positive, default=8, help="requests at a time (default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=600, metavar="S", help="seconds a request may take")
    parser.add_argument("--attempts", type=positive, default=4, help="for 429, 5xx and lost connections")
    parser.add_argument("--retry-failed", action="store_true", help="ask again what failed in a run that goes on")
    parser.add_argument("--score-only", type=Path, metavar="DIR", help="send nothing: score and report a run again")
    parser.add_argument("--json", action="store_true", help="the scores as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run what is left to run, score, and report; 1 if something is found wrong."""
    from constrained_k2.evaluation.ab.directory import lock, open_run
    from constrained_k2.evaluation.ab.report import finite, show, write_reports
    from constrained_k2.evaluation.ab.results import score

    try:
        directory = _ask(options) if options.score_only is None else open_run(options.score_only)
    except KeyboardInterrupt:
        print("constrained-k2: ended; the same command goes on where it was", file=sys.stderr)
        return 130  # as shells have it
    with lock(directory.path):
        results = score(directory, baseline=options.baseline)
        paths = write_reports(results)
    if options.json:
        print(json.dumps(finite(results.to_json()), indent=2))
    else:
        show(results, paths)
    return int(bool(results.findings))


def _ask(options: argparse.Namespace) -> "RunDirectory":
    import asyncio

    from constrained_k2.evaluation.ab.directory import Sampling, begin
    from constrained_k2.evaluation.ab.endpoint import Limits
    from constrained_k2.evaluation.ab.live import LiveFigures
    from constrained_k2.evaluation.ab.loaders import numbered_keys
    from constrained_k2.evaluation.ab.runner import run as run_arms

    if options.timeout <= 0:
        raise InvalidRequest("must be more than 0", "--timeout")
    limits = Limits(seconds=options.timeout, attempts=options.attempts, concurrency=options.concurrency)
    if options.url is None and not options.arm and options.arms is None:
        return _ask_stand_in(options, limits)
    arms = _arms(options)
    sampling = Sampling(options.temperature, options.max_tokens, options.repetitions, options.seed)
    source = f"built-in set of {options.count}" if options.samples is None else str(options.samples)
    directory = begin(options.output, source, numbered_keys(_samples(options)), sampling)
    for line in directory.bad_lines[1]:
        print(f"constrained-k2: {source}: {line}", file=sys.stderr)
    with _write_errors_named(directory.path), LiveFigures(directory, arms, is_shown=not options.json) as figures:
        asyncio.run(run_arms(directory, arms, limits=limits, retry_failed=options.retry_failed, on_answer=figures.add))
    return directory


@contextmanager
def _write_errors_named(path: Path) -> Iterator[None]:
    failed: BaseException | None = None
    try:
        yield
    except* OSError as errors:
        failed = errors
    while isinstance(failed, BaseExceptionGroup):
        failed = failed.exceptions[0]
    if failed is not None:  # raised within ``except*`` it would come out as a group
        raise InvalidRequest(f"cannot be written: {failed}", str(path), "The same command goes on") from failed


def _ask_stand_in(options: argparse.Namespace, limits: "Limits") -> "RunDirectory":
    from constrained_k2.evaluation.ab.directory import Sampling, begin
    from constrained_k2.evaluation.ab.embedded import TEMPERATURE, Embedded, stand_in_samples
    from constrained_k2.evaluation.ab.loaders import numbered_keys

    for name in ("samples", "answers", "official", "model"):
        if getattr(options, name) is not None:
            raise InvalidRequest("no server is named", f"--{name}", "Give a server's address, or --arm NAME=URL")
    temperature = TEMPERATURE if options.temperature is None else options.temperature
    sampling = Sampling(temperature, options.max_tokens, options.repetitions, options.seed)
    samples = numbered_keys(stand_in_samples(options.count, options.seed))
    directory = begin(options.output, f"the stand-in's held-out requests, {options.count}", samples, sampling)
    embedded = Embedded(
        directory,
        limits,
        retry_failed=options.retry_failed,
        is_shown=not options.json,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    with _write_errors_named(directory.path):
        try:
            embedded.run()
        except RuntimeError as error:
            raise InvalidRequest(str(error), "vLLM on this machine") from error
    return directory


def _arms(options: argparse.Namespace) -> "list[Arm]":
    from constrained_k2.evaluation.ab.arms import check_names, parse_arm, read_arm

    given = list(options.arm)
    listed = read_json(options.arms) if options.arms is not None else []
    if not isinstance(listed, list):
        raise InvalidRequest("must be a list of arms", options.arms)
    if not given and not listed:
        if options.url is None:
            raise InvalidRequest("no server is named", "URL", "Give a server's address, or --arm NAME=URL")
        given = ["unconstrained", "constrained"]
    arms = [parse_arm(text, options.url) for text in given] + [read_arm(value, options.url) for value in listed]
    check_names(arms)
    return [arm if arm.model or not options.model else replace(arm, model=options.model) for arm in arms]


def _samples(options: argparse.Namespace) -> "Iterator[Sample | BadLine]":
    from constrained_k2.evaluation.ab.built_in import built_in
    from constrained_k2.evaluation.ab.loaders import read_samples

    if options.samples is None:
        for name in ("answers", "official"):
            if getattr(options, name) is not None:
                raise InvalidRequest("no samples are named", f"--{name}", "Give their file by --samples")
        return built_in(options.count, options.seed)
    return read_samples(options.samples, options.answers, options.official)
