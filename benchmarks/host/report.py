"""Formats the figures as Markdown tables, and checks the promises."""

from collections.abc import Iterable, Iterator

from benchmarks.host.arms import LLGuidanceArm, Ours, XGrammarArm
from benchmarks.host.batches import MIXES
from benchmarks.host.first_mask import KINDS
from benchmarks.host.run import Figures
from benchmarks.host.timing import Times
from benchmarks.host.workload import PHASES

ARMS = (Ours.name, XGrammarArm.name, LLGuidanceArm.name)
_LONG_LIST = 258
_LARGE_BATCH = 256


def promises(figures: Figures) -> list[tuple[str, str, bool]]:
    """Return (promise, measured figure, whether it holds) for everything that was measured."""
    return list(_promises(figures))


def _promises(figures: Figures) -> Iterator[tuple[str, str, bool]]:
    ours = figures.steps[Ours.name]
    calls = figures.text_engine_calls
    yield "free text: no engine call", f"{calls}", calls == 0
    if figures.text is not None:
        found = figures.text.p50
        yield "free text: 1 us a row", f"{found:.2f} us p50", found <= 1
    if _LONG_LIST in figures.first_mask.get(Ours.name, {}):
        cold = figures.first_mask[Ours.name][_LONG_LIST]["cold"]
        yield f"first mask, {_LONG_LIST} tools: 5 ms", f"{cold.p99:.2f} ms p99", cold.p99 <= 5
        if _LONG_LIST in figures.first_mask[XGrammarArm.name]:
            theirs = figures.first_mask[XGrammarArm.name][_LONG_LIST]["cold"]
            factor = theirs.p50 / cold.p50
            yield f"… 100 times as fast as {XGrammarArm.name}", f"{factor:.0f} times", factor >= 100
    if Ours.name in figures.cold_steps:
        longest = figures.cold_steps[Ours.name]
        yield "no step over 10 ms, cold", f"{longest.p99:.1f} ms p99, {longest.max:.1f} max", longest.max <= 10
    middle, high = ours.inside.p50, ours.inside.p99
    yield (
        "inside a call: 5 us p50, 150 us p99 a row",
        f"{middle:.1f} us p50, {high:.0f} us p99",
        middle <= 5 and high <= 150,
    )
    large = figures.batch.get(Ours.name, {}).get("inside", {}).get(_LARGE_BATCH)
    if large is not None:
        steady = large.steady
        yield (
            f"{_LARGE_BATCH} rows inside calls: 1.5 ms p50, 5 ms max",
            f"{steady.p50:.2f} ms p50, {steady.max:.2f} max",
            steady.p50 <= 1.5 and steady.max <= 5,
        )
    factor = figures.steps[XGrammarArm.name].turn_mean / ours.turn_mean
    yield f"whole turns: 3 times as cheap as {XGrammarArm.name}", f"{factor:.1f} times", factor >= 3
    if figures.cache is not None:
        cache = figures.cache
        yield (
            f"{cache.requests} requests, {cache.schemas} schemas: within the cache's {cache.bound_mb:.0f} MB",
            f"{cache.counted_mb:.0f} MB counted, {cache.grown_mb:.0f} MB grown",
            max(cache.counted_mb, cache.grown_mb) <= cache.bound_mb,
        )


def tables(figures: Figures) -> str:
    """Format all tables."""
    return "\n\n".join("\n".join(table) for table in _tables(figures)) + "\n"


def _tables(figures: Figures) -> Iterator[list[str]]:
    yield [f"{figures.source}. {figures.machine}. {figures.plan.listed} tools unless stated otherwise."]
    for kind in KINDS:
        sizes = list(figures.first_mask.get(Ours.name, {}))
        yield [
            f"First mask, {kind}, ms (p50 / p99 if measured more than once)",
            "",
            *_header("tools", map(str, sizes)),
            *(
                _line(arm, (_milliseconds(found[size][kind]) if size in found else "" for size in sizes))
                for arm, found in figures.first_mask.items()
            ),
        ]
    if figures.cold_steps:
        yield [
            "Longest step of a turn whose schema is cold, ms (p50 / p99 / max)",
            "",
            *_header("", ["ms"]),
            *(_line(arm, [_three(times)]) for arm, times in figures.cold_steps.items()),
        ]
    for what in ("fill", "accept"):
        yield [
            f"{'A mask' if what == 'fill' else 'A token'}, us (p50 / p99 / max)",
            "",
            *_header("", PHASES),
            *(_line(arm, (_three(getattr(figures.steps[arm], what)[phase]) for phase in PHASES)) for arm in ARMS),
        ]
    yield [
        "us (p50 / p99 / max; then the mean of a step, mask and token, over whole turns and over new turns)",
        "",
        *_header("", ["mask, strings and structure", "four tokens back", "fork", "step, mean", "the first time"]),
        *(
            _line(
                arm,
                [
                    *map(_three, (found.inside, found.rollback, found.fork)),
                    f"{found.turn_mean:.1f}",
                    f"{found.first_mean:.1f}",
                ],
            )
            for arm, found in figures.steps.items()
        ),
    ]
    if figures.text is not None:
        what = "Free text with the mask resident on the device (ours), us a row (p50 / p99 / max)"
        yield [f"{what}: {_three(figures.text)}; {figures.text_engine_calls} engine calls."]
    for mix in MIXES:
        sizes = list(figures.batch[Ours.name][mix])
        for when, called in (("steady", ""), ("first", ", turns not written before")):
            yield [
                f"Batch fill, {mix}{called}, ms (p50 / p99 / max)",
                "",
                *_header("rows", map(str, sizes)),
                *(
                    _line(arm, (_three(getattr(found[mix][size], when)) for size in sizes))
                    for arm, found in figures.batch.items()
                ),
            ]
    yield [
        "Memory, KB",
        "",
        *_header("", ["a compiled and called tool", "a live request"]),
        *(_line(arm, [f"{found.schema_kb:.0f}", f"{found.request_kb:.0f}"]) for arm, found in figures.memory.items()),
    ]
    yield [
        *_header("must hold", ["found", "holds"]),
        *(_line(what, [found, "yes" if holds else "**no**"]) for what, found, holds in figures.promises),
    ]


def _header(first: str, columns: Iterable[str]) -> list[str]:
    names = list(columns)
    return [_line(first, names), f"|---|{'--:|' * len(names)}"]


def _line(first: str, cells: Iterable[str]) -> str:
    return f"| {first} | {' | '.join(cells)} |"


def _milliseconds(times: Times) -> str:
    return f"{times.p50:.2f} / {times.p99:.2f}" if times.count > 1 else f"{times.p50:.0f}"


def _three(times: Times) -> str:
    return f"{times.p50:.2f} / {times.p99:.2f} / {times.max:.2f}"
