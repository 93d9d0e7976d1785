"""Sampled stacks of a server's processes, and whose code each sample was in."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

Stack = tuple[str, ...]
"""Frames as ``FUNCTION (FILE)``, the outermost first; files from their package on."""

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
_INSTALLED = re.compile(r".*/(site-packages|lib/python[0-9.]+)/")
_FRAME = re.compile(r"^(?P<function>.*) \((?P<file>[^()]*?)(?::\d+)?\)$")


_WAITS = re.compile(
    r"(Runner\.run|run) \(/asyncio/runners\.py\)"  # an event loop without a callback
    r"|.* \(/(selectors|queue|threading|concurrent/futures/(thread|_base))\.py\)"
    r"|sched_yield \(/vllm/distributed/utils\.py\)"  # until another process has written
    r"|(_Pool\._serve|give_way) \(/constrained_k2/schema/compile_pool\.py\)"
)

Profile = Mapping[str, Mapping[Stack, float]]
"""Name of a process -> stack -> microseconds on a CPU for each step of the engine."""


def is_waiting(stack: Stack) -> bool:
    """Return True for a thread that waits for work: py-spy samples it where it cannot see which threads run."""
    return bool(stack) and _WAITS.fullmatch(stack[-1]) is not None


def by_owner(stacks: Mapping[Stack, float]) -> dict[str, float]:
    """Return the time by whose code it was spent in."""
    found: dict[str, float] = {}
    for stack, time in stacks.items():
        owner = owner_of(stack)
        found[owner] = found.get(owner, 0.0) + time
    return found


def by_function(stacks: Mapping[Stack, float]) -> dict[str, float]:
    """Return the time in code of this package, by its innermost function."""
    found: dict[str, float] = {}
    for stack, time in stacks.items():
        if owner_of(stack) == OURS:
            frame = next(frame for frame in reversed(stack) if f"/{OURS}/" in frame)
            found[frame] = found.get(frame, 0.0) + time
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
            found[tuple(_shortened(frame) for frame in frames if not frame.startswith("process "))] += int(
                match["count"]
            )
    return found


def _shortened(frame: str) -> str:
    """Leave out a frame's line, and the folder that its package is installed in."""
    match = _FRAME.match(frame)
    if match is None:
        return frame
    file, installed = match["file"], _INSTALLED.match(match["file"])
    if installed:
        file = file[installed.end() - 1 :]
    elif f"/{OURS}/" in file:
        file = file[file.rfind(f"/{OURS}/") :]
    return f"{match['function']} ({file})"
