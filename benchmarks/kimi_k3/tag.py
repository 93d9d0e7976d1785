"""Compares vLLM's own tag for Kimi K3 with our masks on the same schemas: by random walks, and by valid instances."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks.kimi_k3.reading import Call, by_text, by_token, calls_in
from benchmarks.kimi_k3.vllm_tag import VllmTag, vllm_arguments
from benchmarks.kimi_k3.walker import Names, Turn, Walker
from benchmarks.kimi_k3.walks import OurTurn, compile_tool, validator
from benchmarks.schemas.corpora import Case
from constrained_k2 import Compiler, Vocabulary
from constrained_k2.parsing.parser import parse_completion
from constrained_k2.prompts.xtml import render_turn
from constrained_k2.request.spec import ToolCall

Say = Callable[[str], None]
NAME = "f"
SPELLED = "a<|close|>argument<|sep|>b"
"""A string that text-level parsers cut."""

WALKED = ("cut off", "wrong index", "missing required keys", "duplicate keys", "type word not the value's", "invalid")
"""The faults of walks. One that is cut off at its limit is counted as that alone; a finished one may have several."""

WRITTEN = ("keys in another order", "a string that spells a marker", "... and is read back")
"""The valid calls that are written again under each arm's masks."""


class Arm(Protocol):
    """Masks and the parser that belongs to them."""

    name: str

    def begin(self, tool: dict[str, Any]) -> Callable[[], Turn]:
        """Compile a request that must call this tool; return what begins its turns."""

    def calls(self, ids: list[int]) -> list[Call]:
        """Return the calls as the arm's parser splits them."""

    def arguments(self, ids: list[int]) -> list[Any]:
        """Return the arguments that its parser hands over."""


class Ours:
    """Our masks and parser."""

    name = "ours"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._compiler = Compiler(vocabulary)

    def begin(self, tool: dict[str, Any]) -> Callable[[], Turn]:
        """See :class:`Arm`."""
        compiled = compile_tool(self._compiler, tool, "forbid")
        compiled.grammar(NAME)
        return lambda: OurTurn(compiled.matcher())

    def calls(self, ids: list[int]) -> list[Call]:
        """See :class:`Arm`."""
        return calls_in(by_token(ids, self._vocabulary))

    def arguments(self, ids: list[int]) -> list[Any]:
        """See :class:`Arm`."""
        return [json.loads(call.arguments) for call in parse_completion(ids, self._vocabulary).tool_calls]


class Theirs:
    """vLLM's tag and parser."""

    name = "vLLM 0.32's tag"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._tag = VllmTag(vocabulary)

    def begin(self, tool: dict[str, Any]) -> Callable[[], Turn]:
        """See :class:`Arm`."""
        self._tag.begin(tool)  # cached from now on
        return lambda: self._tag.begin(tool)

    def calls(self, ids: list[int]) -> list[Call]:
        """See :class:`Arm`."""
        return calls_in(by_text(ids, self._vocabulary))

    def arguments(self, ids: list[int]) -> list[Any]:
        """See :class:`Arm`."""
        return vllm_arguments(ids, self._vocabulary)


@dataclass(slots=True)
class Figures:
    """Counts of one arm.

    Attributes:
        refused: Schemas that it does not compile.
        walks: Walks over the others.
        faults: Walks with each of the faults ``WALKED``.
        written: How many of the instances it writes, by ``WRITTEN``.
        examples: Fault -> the first walk that shows it.
    """

    refused: int = 0
    walks: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    written: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)


def compare(cases: list[Case], vocabulary: Vocabulary, seeds: int, say: Say) -> tuple[dict[str, Figures], Counter[str]]:
    """Walk over every schema with both arms, and offer both the instances that ours wrote.

    Returns:
        The figures by arm, and the number of instances by ``WRITTEN``.
    """
    arms: tuple[Arm, ...] = (Ours(vocabulary), Theirs(vocabulary))
    walker, offered = Walker(vocabulary), Counter[str]()
    figures = {arm.name: Figures() for arm in arms}
    for number, case in enumerate(cases):
        schema, judged = json.loads(case.schema), validator(json.loads(case.judged or case.schema))
        tool = {"type": "function", "function": {"name": NAME, "parameters": schema}}
        names, instances = Names.of(schema, vocabulary), list[Any]()
        for arm in arms:
            found = figures[arm.name]
            try:
                begin = arm.begin(tool)
            except Exception:  # noqa: BLE001 - any error of a compiler is a refusal
                found.refused += 1
                continue
            for seed in range(seeds):
                ids = walker.walk(begin(), names, seed, _begun(vocabulary), limit=3000)
                found.walks += 1
                faults = set(_faults(ids, arm, schema, judged, vocabulary))
                found.faults.update(faults)
                for fault in faults:
                    found.examples.setdefault(fault, f"{case.name}: {vocabulary.decode(ids)}")
                if isinstance(arm, Ours) and not faults:
                    instances += arm.arguments(ids)
            for what, value in _offers(instances, judged):
                if isinstance(arm, Ours):
                    offered[what] += 1
                ids = render_turn([ToolCall(NAME, 1, json.dumps(value, ensure_ascii=False))], vocabulary)
                if all(map(begin().accept, ids)):
                    found.written[what] += 1
                    if what == WRITTEN[1] and arm.arguments(ids) == [value]:
                        found.written[WRITTEN[2]] += 1
        if (number + 1) % 20 == 0:
            say(f"{number + 1} of {len(cases)} schemas")
    offered[WRITTEN[2]] = offered[WRITTEN[1]]
    return figures, offered


def _begun(vocabulary: Vocabulary) -> list[int]:
    """Return the empty response, so that no random text comes before the calls."""
    markers = vocabulary.format
    return [markers.call_end, *vocabulary.encode("response"), markers.argument_begin]


def _faults(ids: list[int], arm: Arm, schema: Any, judged: Any, vocabulary: Vocabulary) -> Iterator[str]:
    """Yield the faults of a walk, of ``WALKED``."""
    if ids[-1] != vocabulary.format.turn_end:
        yield WALKED[0]
        return
    calls = arm.calls(ids)
    if [call.index for call in calls] != [str(number + 1) for number in range(len(calls))]:
        yield WALKED[1]
    for call in calls:
        keys = [block.key for block in call.blocks]
        if not set(keys) >= set(schema.get("required", ())):
            yield WALKED[2]
        if len(set(keys)) < len(keys):
            yield WALKED[3]
        if not all(block.is_tied for block in call.blocks):
            yield WALKED[4]
    if not all(judged.is_valid(arguments) for arguments in arm.arguments(ids)):
        yield WALKED[5]


def _offers(instances: list[Any], judged: Any) -> Iterator[tuple[str, Any]]:
    """Yield valid instances: their keys in the opposite order, and with a marker in the first string that takes it."""
    for instance in instances:
        turned = _turned(instance)
        if json.dumps(turned) != json.dumps(instance):
            yield WRITTEN[0], turned
        for spelled in _spelled(instance):
            if judged.is_valid(spelled):
                yield WRITTEN[1], spelled
                break


def _turned(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _turned(item) for key, item in reversed(value.items())}
    return [_turned(item) for item in value] if isinstance(value, list) else value


def _spelled(value: Any) -> Iterator[Any]:
    """Yield a value with each of its strings replaced, one at a time."""
    if isinstance(value, str):
        yield SPELLED
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        for changed in _spelled(item):
            copy = value.copy()
            copy[key] = changed
            yield copy


def table(figures: dict[str, Figures], offered: Counter[str], say: Say) -> bool:
    """Print the figures; return True if ours has no fault in finished walks and writes all instances."""
    say(f"\n| | {' | '.join(figures)} |\n|---|{'--:|' * len(figures)}")
    found = figures.values()
    say(f"| schemas refused | {' | '.join(str(each.refused) for each in found)} |")
    say(f"| walks | {' | '.join(str(each.walks) for each in found)} |")
    for fault in WALKED:
        say(f"| {fault} | {' | '.join(str(each.faults[fault]) for each in found)} |")
    for what in WRITTEN:
        counts = " | ".join(str(each.written[what]) for each in found)
        say(f"| of {offered[what]} instances, written: {what} | {counts} |")
    ours = figures[Ours.name]
    is_valid = not any(ours.faults[fault] for fault in WALKED[1:])
    return is_valid and all(ours.written[what] == offered[what] for what in WRITTEN)
