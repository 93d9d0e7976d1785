"""What an operator sees of us in vLLM's own ``/metrics``.

The metrics live in the processes that admit requests, in prometheus_client's default registry (several such processes
share files that vLLM sets up, and the metrics of each are summed). What the engine's side counts is brought here by
:mod:`constrained_k2.vllm_plugin.metrics_carrier`. Every label has a small, fixed set of values, none of
them a client's text.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

from prometheus_client import Counter, Histogram

from constrained_k2.compiler import CompiledToolCalls
from constrained_k2.vllm_plugin.settings import Server

Covered = Literal["whole", "relaxed", "object", "none"]
"""How the arguments of a request's calls are kept: whole, not in everything, as any object; none: no call may come."""

PHASES = ("constant", "header", "arguments")

_COMPILE_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)  # seconds; admission allows 1


class _Families:
    """The metric families. One of each a process: prometheus_client takes a name once."""

    def __init__(self) -> None:
        model, engine = ["model_name"], ["model_name", "engine"]  # vLLM's own labels: engine is a data-parallel rank
        self.requests = Counter(
            "constrained_k2_requests",
            "Requests admitted to be constrained.",
            [*model, "grammar_engine", "tool_choice", "coverage"],
        )
        self.refusals = Counter(
            "constrained_k2_refused_requests",
            "Requests refused because they cannot be constrained or have no clear meaning.",
            [*model, "reason", "detail"],
        )
        self.lookups = Counter(
            "constrained_k2_grammar_lookups",
            "Grammars of tools asked for, where requests are admitted and in the engine.",
            [*model, "where", "result"],
        )
        self.compile_seconds = Histogram(
            "constrained_k2_compile_seconds",
            "Time to compile one tool's schema.",
            [*model, "where"],
            buckets=_COMPILE_BUCKETS,
        )
        self.masked_steps = Counter(
            "constrained_k2_masked_steps", "Engine steps in which at least one row of logits was masked.", engine
        )
        self.masked_rows = Counter(
            "constrained_k2_masked_rows", "Rows of logits masked, draft positions included.", [*engine, "phase"]
        )
        self.mask_seconds = Counter(
            "constrained_k2_mask_seconds", "Host time to find the masks of these rows.", [*engine, "phase"]
        )
        self.examined = Counter(
            "constrained_k2_examined_tokens", "Masked rows whose likeliest token was looked up before the mask.", engine
        )
        self.changed = Counter(
            "constrained_k2_masked_argmax_tokens", "Examined rows whose likeliest token the mask forbade.", engine
        )
        self.ended_early = Counter(
            "constrained_k2_ended_early_requests", "Requests ended because something failed in the engine.", engine
        )


@cache
def families() -> _Families:
    """The metric families, made on first use."""
    return _Families()


def expose(model_name: str, engines: list[int]) -> None:
    """Show every metric of a server at 0, where its labels are known beforehand, so that rates begin with the server.

    Args:
        model_name: The served model's name, vLLM's ``model_name`` label.
        engines: The data-parallel ranks that report to this process.
    """
    shown = families()
    for where in ("admission", "engine"):
        shown.compile_seconds.labels(model_name, where)
        for result in ("hit", "miss"):
            shown.lookups.labels(model_name, where, result)
    for rank in engines:
        for family in (shown.masked_steps, shown.examined, shown.changed, shown.ended_early):
            family.labels(model_name, rank)
        for phase in PHASES:
            shown.masked_rows.labels(model_name, rank, phase)
            shown.mask_seconds.labels(model_name, rank, phase)


def record_request(compiled: CompiledToolCalls, grammar_engine: str) -> None:
    """Count a request that is admitted.

    Args:
        compiled: It, checked.
        grammar_engine: The engine that will match its arguments.
    """
    families().requests.labels(
        Server.model_name, grammar_engine, compiled.spec.choice, coverage_of_request(compiled)
    ).inc()


def record_lookups(compiled: CompiledToolCalls) -> None:
    """Count the grammars that the admission of a request asked for, whether it came to be admitted or not."""
    for seconds in compiled.compile_seconds.values():
        result = "hit" if seconds is None else "miss"
        families().lookups.labels(Server.model_name, "admission", result).inc()
        if seconds is not None:
            families().compile_seconds.labels(Server.model_name, "admission").observe(seconds)


def record_refusal(reason: str, detail: str) -> None:
    """Count a request that is refused, by values of :mod:`constrained_k2.vllm_plugin.refusals`."""
    families().refusals.labels(Server.model_name, reason, detail).inc()


def record_engine(news: Mapping[str, Any], model_name: str, rank: int) -> None:
    """Add what an engine has counted since it last reported.

    Args:
        news: From :meth:`constrained_k2.counters.Published.news`.
        model_name: The served model's name.
        rank: The engine's data-parallel rank.
    """
    shown = families()
    totals: Mapping[str, float] = news["totals"]
    for family, name in (
        (shown.masked_steps, "masked_steps"),
        (shown.examined, "examined_rows"),
        (shown.changed, "changed_rows"),
        (shown.ended_early, "ended_early"),
    ):
        family.labels(model_name, rank).inc(totals.get(name, 0))
    for phase in PHASES:
        shown.masked_rows.labels(model_name, rank, phase).inc(totals.get(f"{phase}_rows", 0))
        shown.mask_seconds.labels(model_name, rank, phase).inc(totals.get(f"{phase}_seconds", 0))
    for result, name in (("hit", "hits"), ("miss", "compiled")):
        shown.lookups.labels(model_name, "engine", result).inc(totals.get(name, 0))
    for seconds in news["compile_seconds"]:
        shown.compile_seconds.labels(model_name, "engine").observe(seconds)


def coverage_of_request(compiled: CompiledToolCalls) -> Covered:
    """How the arguments of a request's calls are kept: as those of the tool that is kept least."""
    if compiled.spec.max_calls == 0:
        return "none"
    found = {coverage_of_tool(compiled, tool.name) for tool in compiled.spec.tools}
    weakest: Covered
    for weakest in ("object", "relaxed"):
        if weakest in found:
            return weakest
    return "whole"


def coverage_of_tool(compiled: CompiledToolCalls, name: str) -> Covered:
    """How the arguments of one function are kept."""
    if compiled.level(name) == "object":
        return "object"
    return "relaxed" if compiled.coverage(name).relaxed else "whole"
