"""The parts of the benchmark; each runs in a process of its own, as ``python -m benchmarks.gpu.parts``."""

import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, TypeAlias

from benchmarks.gpu.processes import end_on_request, run_limited
from benchmarks.gpu.results import Check, NotRun, PartResult, Recorder

_RESERVE = 10.0  # seconds that a part may run over its time before it is ended


@dataclass(frozen=True, slots=True)
class PartOptions:
    """The options of one part.

    Attributes:
        end: The time at which it should end, of ``time.monotonic``, which all processes of a machine share.
        interpret: Run kernels in Triton's interpreter, on small shapes, without a GPU.
        shared: Folder with the real vocabulary and public tools; a small vocabulary is used if it is missing.
        model: Model directory or name for whole engines; None for a small random model.
        output: Folder for logs and results.
    """

    end: float
    interpret: bool
    shared: str
    model: str | None
    output: str

    @property
    def seconds(self) -> float:
        """The time that is left."""
        return self.end - time.monotonic()

    @property
    def device(self) -> str:
        """The device of the logits."""
        return "cpu" if self.interpret else "cuda"


Measure: TypeAlias = Callable[[PartOptions, Recorder], None]


class Part(NamedTuple):
    """The module that measures a part, and the part's share of the time. What it leaves goes to those after it."""

    module: str
    share: float


PARTS: Mapping[str, Part] = {
    "kernels": Part("kernels", 0.3),
    "uploads": Part("uploads", 0.1),
    "vllm": Part("engine_part", 0.6),
}


def run_part(name: str, options: PartOptions) -> PartResult:
    """Run a part in a process of its own: an error on the device, or a long launch, ends no other part."""
    output = Path(options.output)
    path, log = output / f"gpu-{name}.json", output / f"gpu-{name}.log"
    path.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.gpu.parts", name, str(path), json.dumps(asdict(options))]
    environment = {"TRITON_INTERPRET": "1"} if options.interpret else {}
    start = time.monotonic()
    sys.stderr.flush()
    limit = options.end - start + _RESERVE
    ended = run_limited(command, limit=limit, log=log, environment=environment, output=sys.stderr.fileno())
    result = PartResult.from_json(json.loads(path.read_text())) if path.is_file() else PartResult(name)
    path.unlink(missing_ok=True)
    result.seconds = time.monotonic() - start
    if not ended.in_time:
        result.not_run.append(NotRun("the rest of this part", f"it was ended after {limit:.0f} s: see {log}"))
    elif ended.code != 0:
        result.checks.append(Check("the part ran to its end", passed=False, note=_last_line(ended.log_end, log)))
    return result


def _last_line(text: str, log: Path) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return f"{lines[-1].strip() if lines else 'it wrote no error'}: see {log}"


def main(name: str, path: str, options: str) -> int:
    """Run a part in this process; 1 if it raises."""
    end_on_request()
    record = Recorder(name, Path(path))
    try:
        measure: Measure = import_module(f"benchmarks.gpu.{PARTS[name].module}").measure
        measure(PartOptions(**json.loads(options)), record)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in {"", "benchmarks", "constrained_k2", "scripts"}:
            raise
        record.not_run("the rest of this part", f"the Python package of the module {package!r} is not installed")
    except Exception:  # noqa: BLE001 - the parent reports it as a check that fails
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
