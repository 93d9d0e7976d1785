"""Defines this package's Prometheus metrics, which vLLM's own ``/metrics`` shows, and updates them.

They live in the processes that admit requests, in prometheus_client's default registry (several such processes
share files that vLLM sets up, and the metrics of each are summed). The engine's counters are brought here by
:mod:`constrained_k2.vllm_plugin.shared.transport`. Every label has a small, fixed set of values, none of
them a client's text.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, NamedTuple

from prometheus_client import Counter, Histogram

from constrained_k2.compiler.compiler import CompiledToolCalls
from constrained_k2.schema.coverage import Coverage
from constrained_k2.vllm_plugin.shared.counters import EngineCounters
from constrained_k2.vllm_plugin.shared.server import Server

Covered = Literal["whole", "relaxed", "object", "none"]
"""The enforcement of a request's arguments: wholly, in part, as any JSON object; none: no calls allowed."""

_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)  # seconds; admission allows 1

_MODEL, _ENGINE = ("model_name",), ("model_name", "engine")  # vLLM's own labels: engine is a data-parallel rank


class Family(NamedTuple):
    """One metric family: ``constrained_k2_`` and its name, with ``_total`` for counters in what Prometheus reads."""

    name: str
    kind: type[Counter] | type[Histogram]
    help: str
    labels: tuple[str, ...]


FAMILIES = (
    Family("requests", Counter, "Requests admitted and constrained.",
           (*_MODEL, "grammar_engine", "tool_choice", "coverage")),
    Family("refused_requests", Counter, "Requests refused because they cannot be constrained or have no clear meaning.",
           (*_MODEL, "reason", "detail")),
    Family("grammar_lookups", Counter, "Grammar lookups, by process (`where`) and result.",
           (*_MODEL, "where", "result")),
    Family("admission_seconds", Histogram, "Time that the API server takes to read a request and check "
           "its tools, including the wait for a thread.", _MODEL),
    Family("compile_seconds", Histogram, "Time to compile one schema, of a tool or a response format.",
           (*_MODEL, "where")),
    Family("masked_steps", Counter, "Engine steps in which at least one row of logits was masked.", _ENGINE),
    Family("masked_rows", Counter, "Rows of logits masked, draft positions included.", (*_ENGINE, "phase")),
    Family("mask_seconds", Counter, "Host time to compute the masks of the masked rows.", (*_ENGINE, "phase")),
    Family("examined_tokens", Counter, "Masked rows whose likeliest token before masking was looked up.", _ENGINE),
    Family("masked_argmax_tokens", Counter, "Examined rows whose likeliest token the mask forbade.", _ENGINE),
    Family("ignored_limit_rows", Counter, "Masked rows for which allowed_token_ids or bad_words was ignored, because "
           "it would have forbidden every token.", _ENGINE),
    Family("empty_masks", Counter, "Masks without any allowed token, which LLGuidance had to compute again. Report "
           "this as a bug.", _ENGINE),
    Family("late_refusals", Counter, "Calls for which any JSON object was allowed, because the tool's schema, "
           "admitted without compiling, had no grammar.", _ENGINE),
    Family("ended_early_requests", Counter, "Requests that an error in the engine core or a worker ended.", _ENGINE),
    Family("adopted_requests", Counter, "Requests of other front ends that the engine core constrains, by the source "
           "of their tools.", (*_ENGINE, "source")),
    Family("left_requests", Counter, "Requests of other front ends that were left to vLLM.",
           (*_ENGINE, "reason")),
    Family("unconstrained_calls", Counter, "Calls begun in answers without a constraint of this package.", _ENGINE),
    Family("declined_calls", Counter, "Calls that were dropped, because the model probably wanted an undeclared "
           "function or repeated a call.", _ENGINE),
    Family("unmeant_calls", Counter, "Calls whose names were less probable than `call_threshold`, but that were made, "
           "because a required call or a response format rules out declining.", _ENGINE),
)  # fmt: skip
"""All metric families."""


@cache
def families() -> dict[str, Any]:
    """The metrics by name, made on first use: prometheus_client takes a name once a process."""
    options: dict[type, dict[str, Any]] = {Histogram: {"buckets": _BUCKETS}}
    return {
        name: kind(f"constrained_k2_{name}", text, labels, **options.get(kind, {}))
        for name, kind, text, labels in FAMILIES
    }


def expose(model_name: str, engines: list[int]) -> None:
    """Show every metric of a server at 0, by its engines' ranks, so that rates begin with the server."""
    shown = families()
    shown["admission_seconds"].labels(model_name)
    for where in ("admission", "engine"):
        shown["compile_seconds"].labels(model_name, where)
    for result in ("hit", "miss", "plain"):
        shown["grammar_lookups"].labels(model_name, "admission", result)
    for rank in engines:
        _engine_counters(model_name, rank)


def record_admission(seconds: float) -> None:
    """Count the time in which a request was read and its tools were checked."""
    families()["admission_seconds"].labels(Server.model_name).observe(seconds)


def record_request(compiled: CompiledToolCalls, grammar_engine: str) -> None:
    """Count an admitted request, by the engine that will match its arguments."""
    labels = (Server.model_name, grammar_engine, compiled.spec.choice, coverage_of_request(compiled))
    families()["requests"].labels(*labels).inc()


def record_lookups(compiled: CompiledToolCalls) -> None:
    """Count the grammars that admission looked up for a request, admitted or not, and those that it did without."""
    families()["grammar_lookups"].labels(Server.model_name, "admission", "plain").inc(compiled.fast_path_count)
    for seconds in compiled.compile_seconds.values():
        result = "hit" if seconds is None else "miss"
        families()["grammar_lookups"].labels(Server.model_name, "admission", result).inc()
        if seconds is not None:
            families()["compile_seconds"].labels(Server.model_name, "admission").observe(seconds)


def record_refusal(reason: str, detail: str) -> None:
    """Count a request that is refused, by values of :mod:`constrained_k2.vllm_plugin.api_server.refusals`."""
    families()["refused_requests"].labels(Server.model_name, reason, detail).inc()


def record_engine(delta: Mapping[str, Any], model_name: str, rank: int) -> None:
    """Add what an engine has counted since it last reported: :meth:`.transport.Published.delta`."""
    known = _engine_counters(model_name, rank)
    totals: Mapping[str, float] = delta["totals"]
    for name, count in totals.items():
        if (counter := known.get(name)) is not None:
            counter.inc(count)
    for seconds in delta["compile_seconds"]:
        families()["compile_seconds"].labels(model_name, "engine").observe(seconds)


@cache
def _engine_counters(model_name: str, rank: int) -> dict[str, Any]:
    """The counters of an engine by the names of their totals, with labels: looking labels up takes most of a report."""
    found: dict[str, Any] = {}
    for total in EngineCounters().snapshot()["totals"]:
        name, *label = total.split()
        found[total] = families()[name].labels(model_name, "engine" if name == "grammar_lookups" else rank, *label)
    return found


def coverage_of_request(compiled: CompiledToolCalls) -> Covered:
    """The coverage of a request: that of its least enforced tool, or of its answer."""
    answer = compiled.answer_grammar
    if compiled.spec.max_calls == 0 and answer is None:
        return "none"
    weakest_last: list[Covered] = ["whole", "relaxed", "object"]
    tools = () if compiled.spec.max_calls == 0 else compiled.spec.tools
    found = [coverage_of_tool(compiled, tool.name) for tool in tools]
    found += [] if answer is None else [covered(answer.coverage)]
    return max(found, key=weakest_last.index, default="whole")


def coverage_of_tool(compiled: CompiledToolCalls, name: str) -> Covered:
    """The coverage of one function's arguments."""
    if compiled.level(name) == "json_object":
        return "object"
    return covered(compiled.admission_coverage(name))


def covered(coverage: Coverage) -> Covered:
    """The coverage of one schema, in one word."""
    return "relaxed" if coverage.relaxed else "whole"
