"""What this package replaces or derives from in vLLM, each thing once: a version that moved one fails here by name."""

import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

import vllm

import constrained_k2.vllm_plugin

OURS = Path(constrained_k2.vllm_plugin.__file__).parent
CHAT = "vllm.entrypoints.openai.chat_completion"

# Our module, what it wraps (where several are named, versions differ), and the parameters that it reads by name or place.
WRAPPED: list[tuple[str, tuple[str, ...], str]] = [
    ("plugin", ("vllm.parser:ParserManager.get_parser",), ""),
    ("plugin", ("vllm.renderers.online_renderer:OnlineRenderer.preprocess_chat",), "self request"),
    ("plugin", ("vllm.entrypoints.openai.completion.protocol:CompletionRequest.to_sampling_params",), "self"),
    ("plugin", ("vllm.entrypoints.openai.completion.protocol:CompletionRequest.to_beam_search_params",), "self"),
    ("plugin", ("vllm.engine.arg_utils:EngineArgs.from_cli_args",), "args"),
    ("plugin", ("vllm.v1.engine.input_processor:InputProcessor.__init__",), "self vllm_config"),
    ("plugin", ("vllm.v1.engine.input_processor:InputProcessor.process_inputs",), "self prompt params"),
    ("metrics_carrier", ("vllm.v1.core.sched.scheduler:Scheduler.update_from_output",),
     "self scheduler_output model_runner_output"),
    ("metrics_carrier", ("vllm.v1.core.sched.scheduler:Scheduler.make_stats",), "self"),
    ("metrics_carrier", ("vllm.v1.metrics.loggers:PrometheusStatLogger.__init__",), "self vllm_config"),
    ("metrics_carrier", ("vllm.v1.metrics.loggers:PrometheusStatLogger.record",), "self scheduler_stats engine_idx"),
    ("finish_reason", (f"{CHAT}.serving:OpenAIServingChat.chat_completion_full_generator",),
     "self request result_generator"),
    ("finish_reason", (f"{CHAT}.serving:maybe_filter_parallel_tool_calls", f"{CHAT}.stream_processor:ChatStreamProcessor.step"), ""),
    ("diagnostics", (f"{CHAT}.serving:maybe_filter_parallel_tool_calls",
                     f"{CHAT}.serving:OpenAIServingChat.chat_completion_full_generator"), ""),
    ("first_choices", ("vllm.v1.worker.gpu_model_runner:apply_grammar_bitmask",),
     "scheduler_output grammar_output input_batch logits"),
    ("first_choices", ("vllm.v1.worker.gpu.structured_outputs:StructuredOutputsWorker.apply_grammar_bitmask",),
     "self logits input_batch"),
    ("first_choices", ("vllm.v1.worker.worker_base:WorkerWrapperBase.execute_model",), "self scheduler_output"),
    ("exact_arguments", ("vllm.renderers.chat_utils:_postprocess_messages",
                         "vllm.renderers.chat_utils.chat_message:_postprocess_messages"), "messages"),
]  # fmt: skip
ALTERNATIVE_WRAPS = {"finish_reason": 1, "diagnostics": 1}  # rows that name two things are wrapped in two places

# Our module, a class of vLLM's that it derives from, and the methods that it overrides or calls.
DERIVED = [
    ("backend", "vllm.v1.structured_output:StructuredOutputManager",
     "grammar_init grammar_bitmask accept_tokens validate_tokens"),
    ("backend", "vllm.v1.engine.core:StructuredOutputManager", "grammar_init"),
    ("backend_grammar", "vllm.v1.structured_output.backend_types:StructuredOutputGrammar",
     "accept_tokens validate_tokens rollback fill_bitmask is_terminated reset"),
    ("logits_processor", "vllm.v1.sample.logits_processor:LogitsProcessor", "apply update_state validate_params"),
    ("logits_processor", "vllm.v1.worker.gpu.sample.logits_processor:LogitsProcessor", "apply"),
    ("metrics_carrier", "vllm.v1.metrics.stats:SchedulerStats", "__dataclass_fields__"),
]  # fmt: skip


def found_at(path: str) -> Any:
    """What stands at ``module:name.name`` in vLLM; None if there is no such thing."""
    module, _, names = path.partition(":")
    try:
        found: Any = import_module(module)
    except ImportError:
        return None
    for name in names.split("."):
        found = getattr(found, name, None)
    return found


@pytest.mark.parametrize(("ours", "paths", "parameters"), WRAPPED, ids=[f"{row[0]} {row[1][0]}" for row in WRAPPED])
def test_what_is_wrapped_is_there(ours: str, paths: tuple[str, ...], parameters: str) -> None:
    found = next(filter(None, map(found_at, paths)), None)
    leans = f"vllm_plugin/{ours}.py leans on it (vLLM {vllm.__version__})"
    assert found is not None, f"{' or '.join(paths)} is gone; {leans}"
    taken = list(inspect.signature(found).parameters)
    missing = [name for name in parameters.split() if name not in taken]
    assert not missing, f"{paths[0]} takes {taken}, no {missing}; {leans}"


@pytest.mark.parametrize(("ours", "path", "members"), DERIVED, ids=[f"{row[0]} {row[1]}" for row in DERIVED])
def test_what_is_derived_from_has_its_members(ours: str, path: str, members: str) -> None:
    found = found_at(path)
    leans = f"vllm_plugin/{ours}.py leans on it (vLLM {vllm.__version__})"
    assert found is not None, f"{path} is gone; {leans}"
    missing = [name for name in members.split() if not hasattr(found, name)]
    assert not missing, f"{path} has no {missing}; {leans}"


def test_the_table_is_whole() -> None:
    """As many rows as there are wraps, so that a new one comes with its row."""
    for source in sorted(OURS.glob("*.py")):
        wraps = len(re.findall(r"@wraps\(", source.read_text()))
        rows = sum(row[0] == source.stem for row in WRAPPED) + ALTERNATIVE_WRAPS.get(source.stem, 0)
        assert wraps == rows, f"{source.name} wraps {wraps} things of vLLM's, the table has {rows}"
