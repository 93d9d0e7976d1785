"""Sampled stacks of a server's processes, and whose code each sample was in."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Stack = tuple[str, ...]
"""Frames as ``FUNCTION (FILE)``, the outermost first."""

OURS = "constrained_k2"

_OWNERS = (
    # Part of a path -> whose code it is. The innermost frame that has one decides.
    ("/constrained_k2/", OURS),
    ("/vllm/distributed/", "vLLM: messages between processes"),
    ("/vllm/v1/serial_utils", "vLLM: messages between processes"),
    ("/vllm/v1/engine/core_client", "vLLM: messages between processes"),
    ("/vllm/v1/structured_output/", "vLLM: structured outputs"),
    ("/vllm/v1/core/", "vLLM: scheduler"),
    ("/vllm/v1/engine/detokenizer", "vLLM: detokenizer"),
    ("/vllm/v1/metrics/", "vLLM: metrics"),
    ("/vllm/v1/sample/", "vLLM: sampler"),
    ("/vllm/v1/worker/", "vLLM: model runner"),
    ("/vllm/model_executor/", "vLLM: model"),
    ("/vllm/v1/attention/", "vLLM: model"),
    ("/vllm/_custom_ops", "vLLM: model"),
    ("/vllm/entrypoints/", "vLLM: HTTP and answers"),
    ("/vllm/parser/", "vLLM: HTTP and answers"),
    ("/vllm/tool_parsers/", "vLLM: HTTP and answers"),
    ("/uvicorn/", "vLLM: HTTP and answers"),
    ("/starlette/", "vLLM: HTTP and answers"),
    ("/fastapi/", "vLLM: HTTP and answers"),
    ("/vllm/renderers/", "vLLM: prompts"),
    ("/vllm/tokenizers/", "vLLM: prompts"),
    ("/transformers/", "vLLM: prompts"),
    ("/vllm/", "vLLM: other"),
)
_LINE = re.compile(r"^(?P<stack>.*) (?P<count>\d+)$")
_FRAME = re.compile(r"^(?P<function>.*) \((?P<file>[^()]*?)(?::\d+)?\)$")


@dataclass(frozen=True, slots=True)
class Sampled:
    """The stacks of a server's processes over some time.

    Attributes:
        processes: Name of a process -> stack -> number of samples in which it was on a CPU.
        rate: Samples a second.
        steps: Steps of the engine meanwhile.
    """

    processes: Mapping[str, Counter[Stack]]
    rate: float
    steps: float

    def microseconds(self, samples: float) -> float:
        """Return the time of these samples for each step of the engine."""
        return 1e6 * samples / self.rate / self.steps

    def by_owner(self, process: str) -> Counter[str]:
        """Return the number of samples by whose code they were in."""
        found: Counter[str] = Counter()
        for stack, count in self.processes[process].items():
            found[owner_of(stack)] += count
        return found

    def by_function(self, process: str) -> Counter[str]:
        """Return the number of samples in code of this package, by its innermost function."""
        found: Counter[str] = Counter()
        for stack, count in self.processes[process].items():
            if owner_of(stack) == OURS:
                found[next(frame for frame in reversed(stack) if f"/{OURS}/" in frame)] += count
        return found


def owner_of(stack: Stack) -> str:
    """Return whose code a stack is in."""
    for frame in reversed(stack):
        for part, owner in _OWNERS:
            if part in frame:
                return owner
    return "Python and libraries"


def read_stacks(lines: Iterable[str]) -> Counter[Stack]:
    """Read py-spy's raw format: frames between semicolons, the outermost first, and a count."""
    found: Counter[Stack] = Counter()
    for line in lines:
        if match := _LINE.match(line.strip()):
            frames = match["stack"].split(";")
            found[tuple(_without_line(frame) for frame in frames if not frame.startswith("process "))] += int(
                match["count"]
            )
    return found


def _without_line(frame: str) -> str:
    match = _FRAME.match(frame)
    return f"{match['function']} ({match['file']})" if match else frame
