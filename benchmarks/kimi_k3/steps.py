"""Times steps and first masks of Kimi K3's turns against Kimi K2's: the same calls, alternately, in one process."""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.host.arms import Ours, Tools
from benchmarks.host.first_mask import first_masks
from benchmarks.host.instances import instance_of
from benchmarks.host.timing import Times, collected_before, microseconds
from benchmarks.host.workload import TEXT, Workload
from constrained_k2.prompts.xtml import render_turn
from constrained_k2.request.spec import ToolCall
from constrained_k2.turn.matcher import ToolCallMatcher
from constrained_k2.turn.phases import Phase
from constrained_k2.vocabulary.bitmask import allocate_bitmask
from constrained_k2.vocabulary.vocabulary import Vocabulary

Ids = tuple[int, ...]
_ROUNDS = {"first": 1, "second": 1, "steady": 5}
_LONG_LIST = 258


@dataclass(slots=True)
class Samples:
    """Times of one format in microseconds.

    Attributes:
        phases: Phase -> the time of each step, mask and token together.
        turns: Number of the turn -> the time of each writing of it.
    """

    phases: defaultdict[Phase, list[float]] = field(default_factory=lambda: defaultdict(list))
    turns: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict(list))


@dataclass(slots=True)
class Figures:
    """The results of a run.

    Attributes:
        lengths: Format -> the tokens of all turns.
        steps: Round -> format -> times.
        first_mask: Format -> kind -> milliseconds.
    """

    lengths: dict[str, int] = field(default_factory=dict)
    steps: dict[str, dict[str, Samples]] = field(default_factory=dict)
    first_mask: dict[str, dict[str, Times]] = field(default_factory=dict)

    def step(self, name: str, kind: str) -> float:
        """Return the mean time of a step: the medians of the turns' times, divided by their tokens."""
        return self.turn(name, kind) * len(self.steps[kind][name].turns) / self.lengths[name]

    def turn(self, name: str, kind: str) -> float:
        """Return the mean of the medians of the turns' times."""
        turns = self.steps[kind][name].turns
        return sum(map(median, turns.values())) / len(turns)


def k3_turn(tools: Tools, seed: int, vocabulary: Vocabulary, calls: int = 2) -> Ids:
    """Return the turn of :meth:`Workload.turn` as Kimi K3 writes it."""
    named = [tools[(seed + index) % len(tools)]["function"] for index in range(calls)]
    written = [
        ToolCall(tool["name"], index, json.dumps(instance_of(tool["parameters"], seed % 2), ensure_ascii=False))
        for index, tool in enumerate(named)
    ]
    return tuple(render_turn(written, vocabulary, response=TEXT))


def measure(workload: Workload, k3: Vocabulary, sizes: tuple[int, int, int], say: Callable[[str], None]) -> Figures:
    """Write the same calls in both formats alternately, and compute first masks of a long list of tools.

    ``sizes`` are the number of listed tools, of turns, and of first masks.
    """
    listed, turns, repeats = sizes
    arms = {"Kimi K2": Ours(workload.vocabulary), "Kimi K3": Ours(k3)}
    tools = workload.first(listed)
    compiled = {name: arm.compile(arm.request(tools)) for name, arm in arms.items()}
    scripts = {
        "Kimi K2": [workload.turn(tools, seed).ids for seed in range(turns)],
        "Kimi K3": [k3_turn(tools, seed, k3) for seed in range(turns)],
    }
    figures = Figures({name: sum(map(len, ids)) for name, ids in scripts.items()})
    with collected_before():
        for kind, count in _ROUNDS.items():
            say(f"steps, {kind} writing")
            samples = figures.steps[kind] = {name: Samples() for name in arms}
            for again in range(count):
                for number in range(turns):
                    for name in sorted(arms, reverse=bool((again + number) % 2)):
                        matcher = compiled[name].matcher()
                        spent = _write(matcher, scripts[name][number], samples[name].phases, k3.size)
                        samples[name].turns[number].append(spent)
    for name, arm in arms.items():
        say(f"first mask of {_LONG_LIST} tools, {name}")
        figures.first_mask[name] = first_masks(arm, workload, _LONG_LIST, repeats)
    return figures


def _write(matcher: ToolCallMatcher, ids: Sequence[int], phases: defaultdict[Phase, list[float]], size: int) -> float:
    bitmask = allocate_bitmask(1, size)
    spent = 0.0
    for index, token_id in enumerate(ids):
        phase = matcher.phase
        start = time.perf_counter_ns()
        matcher.fill_bitmask(bitmask, 0)
        accepted = matcher.accept_tokens((token_id,))
        took = microseconds(start)
        if not accepted or not bitmask[0, token_id >> 5] >> (token_id & 31) & 1:
            raise RuntimeError(f"token {index} of a turn ({phase.name}) is not allowed")
        phases[phase].append(took)
        spent += took
    assert matcher.is_terminated()
    return spent


def table(figures: Figures, say: Callable[[str], None]) -> bool:
    """Print the figures; return True if both promises hold."""
    names = tuple(figures.lengths)
    say(f"\n| | {' | '.join(names)} | factor |\n|---|--:|--:|--:|")

    def row(what: str, values: Sequence[float], unit: str) -> float:
        factor = values[1] / values[0]
        say(f"| {what} | {' | '.join(f'{value:.2f}' for value in values)} {unit} | {factor:.2f} |")
        return factor

    row("tokens of all turns", [float(figures.lengths[name]) for name in names], "")
    for kind in _ROUNDS:
        row(f"a step, {kind} writing, mean", [figures.step(name, kind) for name in names], "us")
        row(f"a turn, {kind} writing, mean", [figures.turn(name, kind) / 1e3 for name in names], "ms")
    for phase in Phase:
        found = [figures.steps["steady"][name].phases.get(phase) for name in names]
        if all(found):
            row(f"a step in {phase.name}, steady, p50", [median(times) for times in found if times], "us")
        elif found[1]:
            say(f"| a step in {phase.name}, steady, p50 | | {median(found[1]):.2f} us | |")
    steps = row("all steps, steady, p50", [_all(figures, name) for name in names], "us")
    holds = [steps <= 1.2, figures.step(names[1], "steady") <= 1.2 * figures.step(names[0], "steady")]
    for kind in figures.first_mask[names[0]]:
        first = [figures.first_mask[name][kind].p50 for name in names]
        factor = row(f"first mask of {_LONG_LIST} tools, {kind}, p50", first, "ms")
        holds.append(factor <= 2)
    say(f"\nA step within 1.2 times, a first mask within 2 times: {'yes' if all(holds) else 'NO'}.")
    return all(holds)


def _all(figures: Figures, name: str) -> float:
    return median(time for times in figures.steps["steady"][name].phases.values() for time in times)
