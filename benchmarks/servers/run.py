"""Times decode steps and first tokens on whole vLLM servers, with and without this package, interleaved."""

import asyncio
import itertools
import json
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from scipy import stats  # type: ignore[import-untyped]

from benchmarks.servers.new_tools import extended
from benchmarks.servers.suspension import resume, running, suspend
from constrained_k2.evaluation.bundled import HELD_OUT, bundled_bodies
from constrained_k2.evaluation.server import BACKEND_FLAGS, CONSTRAINED_FLAGS, STRICT_FLAGS, WITHOUT_PLUGIN, VllmServer
from constrained_k2.evaluation.server_metrics import growth, parse_counters, total

SERVERS: Mapping[str, tuple[Sequence[str], Mapping[str, str]]] = {
    "stock": (("--enable-auto-tool-choice", "--tool-call-parser", "kimi_k2"), WITHOUT_PLUGIN),
    "strict": (STRICT_FLAGS, WITHOUT_PLUGIN),
    "structured_output": (BACKEND_FLAGS, {}),
    "logits_processor": (CONSTRAINED_FLAGS, {}),
}
"""Name -> flags and environment. All run at the same time; those that are not asked are suspended (SIGSTOP)."""

_MAX_TOKENS = 64
_ROWS = 32
_INTERVAL = 16  # tokens in a chunk of a stream; after the first chunk all prompts of a wave are done
_REQUESTS = 4  # in a burst, at least, in waves of the concurrency
_RESAMPLED = 2_000
_TRIMMED = 0.2  # of the rounds, at each end
_STALLED = 5  # times the median of its rounds: a baseline that waited for the machine says nothing of an arm
_MOST_REQUESTS = 1_000  # of a burst
_DRAWN = 8  # samples drawn for each one sent


@dataclass(frozen=True, slots=True)
class Arm:
    """One arm.

    Attributes:
        name: Its row in the table.
        server: A key of :data:`SERVERS`.
        tool_choice: None sends no tools.
        baseline: The arm of the denominator: the same requests, on a server that is unconstrained or differs in
            one flag. It is its own baseline.
        is_measured: The probabilities of names are measured, as they are by default.
    """

    name: str
    server: str
    tool_choice: str | None
    baseline: str
    is_measured: bool = True


_NO_TOOLS, _FREE = "no tools, vLLM without the plugin", "tools, unconstrained"
ARMS = (
    Arm(_NO_TOOLS, "stock", None, _NO_TOOLS),
    Arm("no tools, plugin, structured_output route", "structured_output", None, _NO_TOOLS),
    Arm("no tools, plugin, logits_processor route", "logits_processor", None, _NO_TOOLS),
    Arm(_FREE, "stock", "auto", _FREE),
    Arm("tools, constrained, structured_output route", "structured_output", "auto", _FREE),
    Arm("tools, constrained, logits_processor route", "logits_processor", "auto", _FREE),
    Arm("tools, vLLM's strict level", "strict", "auto", _FREE),
    Arm("a call required, structured_output route", "structured_output", "required", _FREE),
    Arm("a call required, logits_processor route", "logits_processor", "required", _FREE),
    Arm("a call required, vLLM's strict level", "strict", "required", _FREE),
    *(
        Arm(f"names {how}measured, {route} route", route, "required", f"names not measured, {route} route", not how)
        for route in ("structured_output", "logits_processor")
        for how in ("not ", "")
    ),
)


@dataclass(frozen=True, slots=True)
class Burst:
    """One burst of requests, in waves: each wave is sent at once and ends before the next one.

    Attributes:
        step: Time of a decode step in seconds: for each request between two tokens after the first chunk of its stream,
            then the median of a wave, then the mean of the waves. Earlier tokens would include other requests' prefill.
        first_token: Mean time to first token in seconds, by the server's metrics.
        masks: Share of the burst's wall time that this package spent on masks.
    """

    step: float
    first_token: float
    masks: float


@dataclass(frozen=True, slots=True)
class Row:
    """An arm at one concurrency, over all rounds.

    Attributes:
        arm: The arm.
        concurrency: Requests at a time.
        bursts: One for each round.
        baseline: The baseline's bursts of the same rounds.
    """

    arm: Arm
    concurrency: int
    bursts: tuple[Burst, ...]
    baseline: tuple[Burst, ...]

    @property
    def steps_per_second(self) -> float:
        """Decode steps a second: the median over the rounds."""
        return statistics.median(1 / burst.step for burst in self.bursts)

    @property
    def first_token(self) -> float:
        """Seconds to the first token: the median over the rounds."""
        return statistics.median(burst.first_token for burst in self.bursts)

    @property
    def masks(self) -> float:
        """Share of the wall time spent on masks: the median over the rounds."""
        return statistics.median(burst.masks for burst in self.bursts)

    @property
    def ratio(self) -> tuple[float, float, float]:
        """The geometric mean of :attr:`ratios` without the lowest and highest fifth, and its 95 % interval.

        The interval is a bootstrap over the rounds. Single rounds are off by a quarter on a shared machine.
        """
        logs = np.log(self.ratios)
        drawn = np.random.default_rng(0).choice(logs, (_RESAMPLED, len(logs)))
        means = stats.trim_mean(drawn, _TRIMMED, axis=1)
        mean, low, high = np.exp([stats.trim_mean(logs, _TRIMMED), *np.percentile(means, [2.5, 97.5])]).tolist()
        return mean, low, high

    @property
    def ratios(self) -> tuple[float, ...]:
        """Steps a second divided by the baseline's of the same round, sorted, without rounds whose baseline stalled."""
        longest = _STALLED * statistics.median(other.step for other in self.baseline)
        rounds = zip(self.bursts, self.baseline, strict=True)
        return tuple(sorted(other.step / burst.step for burst, other in rounds if other.step <= longest))


def arms_named(parts: Sequence[str]) -> tuple[Arm, ...]:
    """Return the arms whose names contain one of these, and their baselines; all arms for none.

    Raises:
        ValueError: No arm's name contains one of them.
    """
    for part in parts:
        if not any(part in arm.name for arm in ARMS):
            raise ValueError(f"no arm's name contains {part!r}; the arms are: {', '.join(arm.name for arm in ARMS)}")
    chosen = [arm for arm in ARMS if not parts or any(part in arm.name for part in parts)]
    baselines = {arm.baseline for arm in chosen}
    return tuple(arm for arm in ARMS if arm in chosen or arm.name in baselines)


def measure(
    model: Path, directory: Path, *, rounds: int, concurrencies: Sequence[int], arms: Sequence[Arm] = ARMS
) -> list[Row]:
    """Send the same requests to every arm in turn, round by round, each round in another order.

    Args:
        model: The model's directory.
        directory: Folder for the servers' logs.
        rounds: Number of rounds.
        concurrencies: Numbers of requests at a time.
        arms: The arms, including their baselines.
    """
    found: dict[tuple[str, int], list[Burst]] = {(arm.name, many): [] for arm in arms for many in concurrencies}
    asked = {arm.server for arm in arms}
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(
                VllmServer(
                    model,
                    flags_of(flags),
                    log=directory / f"{name}.log",
                    environment=environment,
                )
            )
            for name, (flags, environment) in SERVERS.items()
            if name in asked
        }
        for server in servers.values():
            suspend(server)
            stack.callback(resume, server)
        for arm in arms:  # warm up
            _timed(servers[arm.server], bodies_of(arm, _ROWS, -1), _ROWS)
        for number in range(rounds):
            turned = [*arms[number % len(arms) :], *arms[: number % len(arms)]]
            for many, arm in itertools.product(concurrencies, turned):
                bodies = bodies_of(arm, max(many, _REQUESTS), number)
                found[arm.name, many].append(_timed(servers[arm.server], bodies, many))
    return [
        Row(arm, many, tuple(found[arm.name, many]), tuple(found[arm.baseline, many]))
        for many in concurrencies
        for arm in arms
    ]


def flags_of(flags: Sequence[str]) -> tuple[str, ...]:
    """Return all flags of a server, by those of :data:`SERVERS`."""
    return ("--dtype=float32", f"--max-num-seqs={_ROWS}", f"--stream-interval={_INTERVAL}", *flags)


def bodies_of(arm: Arm, count: int, seed: int) -> list[dict[str, Any]]:
    """Return the requests of a burst, which differ between arms only in what defines the arm; their tools are new.

    Of many requests, those with the longest expected calls are used: ``ignore_eos`` makes every request write the same
    number of tokens, and after the end of a turn constrained requests only repeat the stop, at almost no cost (two
    fifths of the tokens without this choice).
    """
    common = {"model": "kimi-k2", "temperature": 0, "max_tokens": _MAX_TOKENS, "ignore_eos": True}
    common |= {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    drawn = bundled_bodies(HELD_OUT, _DRAWN * count, seed + 1)
    samples = sorted(drawn, key=lambda sample: len(json.dumps(sample["expected"])), reverse=True)
    bodies = []
    for number, sample in enumerate(samples[:count]):
        body = common | {"messages": sample["messages"]}
        if arm.tool_choice is not None:
            # Two arms of one server must not find each other's grammars: both have new tools.
            tools = extended(sample["tools"], _MOST_REQUESTS * (2 * (seed + 1) + arm.is_measured) + number)
            body |= {"tools": tools, "tool_choice": arm.tool_choice}
        if not arm.is_measured:
            body["vllm_xargs"] = {"constrained_k2_undeclared_calls": "nearest"}
        bodies.append(body)
    return bodies


def _timed(server: VllmServer, bodies: Sequence[Mapping[str, Any]], concurrency: int) -> Burst:
    """Run a burst on a server that is suspended otherwise."""
    with running(server):
        return asyncio.run(ask(server.url, bodies, concurrency))


async def ask(url: str, bodies: Sequence[Mapping[str, Any]], concurrency: int) -> Burst:
    """Send a burst of requests."""
    loop = asyncio.get_running_loop()
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:

        async def step(body: Mapping[str, Any]) -> float:
            async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                if not answer.is_success:
                    raise RuntimeError(f"HTTP {answer.status_code}: {(await answer.aread())[:500]!r}")
                return _step([(line, loop.time()) async for line in answer.aiter_lines()])

        before = parse_counters((await client.get("/metrics")).text, "")
        start = loop.time()
        steps = [
            statistics.median(await asyncio.gather(*map(step, bodies[at : at + concurrency])))
            for at in range(0, len(bodies), concurrency)
        ]
        seconds = loop.time() - start
        grown = growth(before, parse_counters((await client.get("/metrics")).text, ""))
    written = total(grown, "vllm:generation_tokens_total")
    if written != len(bodies) * _MAX_TOKENS:
        raise RuntimeError(f"{len(bodies)} requests wrote {written:.0f} tokens, not {_MAX_TOKENS} each")
    return Burst(
        statistics.mean(steps),
        _mean(grown, "vllm:time_to_first_token_seconds"),
        total(grown, "constrained_k2_mask_seconds_total") / seconds,
    )


def _step(lines: Sequence[tuple[str, float]]) -> float:
    """Return the time between two tokens of a stream, given its lines and their times.

    The first chunks are left out unless only the last chunk follows them: parsers buffer incomplete text.
    """
    came: dict[int, float] = {}  # number of tokens written -> time
    for line, time in lines:
        if line.startswith("data: {"):
            written = json.loads(line.removeprefix("data: "))["usage"]["completion_tokens"]
            came.setdefault(max(1, written), time)  # the first chunk comes with the first token and reports 0
    many = max(came)
    few = min((count for count in came if _INTERVAL < count < many), default=min(came))
    return (came[many] - came[few]) / (many - few)


def _mean(counters: Mapping[str, float], histogram: str) -> float:
    """Return the mean of a histogram."""
    return total(counters, f"{histogram}_sum") / total(counters, f"{histogram}_count")
