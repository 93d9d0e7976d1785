"""Examined rows in the API server: taken out of the engine's outputs, and reported within bounds."""

import gc
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from constrained_k2 import Compiler, ToolCall, ToolCallSpec, Vocabulary, render_tool_calls
from constrained_k2.compiler.compiled import CompiledToolCalls
from constrained_k2.explain.limits import ExplainLimits
from constrained_k2.explain.records import ExaminedRow
from constrained_k2.vllm_plugin.api_server import examination as module
from constrained_k2.vllm_plugin.api_server.examination import Examination, take_rows
from constrained_k2.vllm_plugin.api_server.request_hook import constrain_request
from constrained_k2.vllm_plugin.api_server.request_state import RequestState
from constrained_k2.vllm_plugin.metrics.row_plan import OUTPUT_FIELD, ROWS_KEY
from tests.vllm_plugin.patched import patch_vllm

UNITS = {"type": "object", "properties": {"units": {"enum": ["celsius", "fahrenheit"]}}, "required": ["units"]}
TOOL = {"type": "function", "function": {"name": "get-weather", "parameters": UNITS}}


@pytest.fixture(scope="module")
def compiled(vocabulary: Vocabulary) -> CompiledToolCalls:
    constraint = ToolCallSpec.from_openai({"tools": [TOOL], "tool_choice": "required"})
    return Compiler(Vocabulary.of_bytes(vocabulary.format)).compile(constraint)


def examination_of(compiled: CompiledToolCalls, vocabulary: Vocabulary) -> Examination:
    made = Examination(compiled)
    made.vocabulary = vocabulary
    return made


def row(position: int, wanted: int, *, drafts: tuple[int, ...] = (), probability: float = 0.5) -> ExaminedRow:
    return ExaminedRow(position, drafts, wanted, True, probability, max(0.5, probability), 2)


def output(key: str, ids: list[int], rows: list[ExaminedRow], **carried: Any) -> EngineCoreOutput:
    """An output as it comes out of the engine core's socket."""
    sent = {"key": key, "rows": [row.to_list() for row in rows]}
    made = EngineCoreOutput("r", ids, kv_transfer_params={**carried, OUTPUT_FIELD: sent})
    decoded: EngineCoreOutput = MsgpackDecoder(EngineCoreOutput).decode(MsgpackEncoder().encode(made))
    return decoded


def test_rows_come_with_outputs_and_are_taken_out_of_them(compiled: CompiledToolCalls, vocabulary: Vocabulary) -> None:
    examined = examination_of(compiled, vocabulary)
    turn = [*render_tool_calls([ToolCall("get-weather", 0, '{"units":"celsius"}')], vocabulary)]
    at = next(n for n in range(len(turn)) if vocabulary.decode(turn[: n + 1]).endswith('"units":"')) + 1
    wanted = vocabulary.encode("K")[0]
    state = SimpleNamespace(request_index=1)
    first = output(examined.key, turn[:at], [], remote="kept")
    second = output(examined.key, turn[at:], [row(at, wanted), row(at + 1, wanted, drafts=(wanted,))])
    take_rows([first, EngineCoreOutput("other", [5])], {"r": state})
    take_rows([second], {"r": state})
    assert first.kv_transfer_params == {"remote": "kept"}
    assert second.kv_transfer_params is None
    report = examined.report(1, ExplainLimits(seconds=20.0))
    (override,) = report["overrides"]
    assert (override["position"], override["wanted"], override["pointer"]) == (at, "K", "/units")
    assert override["keywords"] == ["enum"]
    assert (report["overrides_count"], report["examined_rows"]) == (1, 1)  # not the row of a rejected draft
    assert [token["allowed"] for token in report["tokens"]] == [2 if n == at else None for n in range(len(turn))]
    assert "".join(token["text"] for token in report["tokens"]) == vocabulary.decode(turn)
    none = {"overrides": [], "overrides_count": 0, "contested": [], "examined_rows": 0, "tokens": []}
    assert examined.report(0) == none


def test_a_forbidden_token_that_is_not_the_likeliest_is_contested(
    compiled: CompiledToolCalls, vocabulary: Vocabulary
) -> None:
    examined = examination_of(compiled, vocabulary)
    turn = [*render_tool_calls([ToolCall("get-weather", 0, '{"units":"celsius"}')], vocabulary)]
    at = next(n for n in range(len(turn)) if vocabulary.decode(turn[: n + 1]).endswith('"units":"')) + 1
    wanted = vocabulary.encode("K")[0]
    rows = [
        ExaminedRow(at, (), wanted, False, module.CONTESTED, 0.3, 2),
        ExaminedRow(at + 1, (), wanted, False, module.CONTESTED / 2, 0.3, 2),
    ]
    examined.take(0, turn, [each.to_list() for each in rows])
    report = examined.report(0, ExplainLimits(seconds=20.0))
    assert (report["overrides"], report["overrides_count"]) == ([], 0)
    (contested,) = report["contested"]
    assert (contested["position"], contested["pointer"], contested["keywords"]) == (at, "/units", ["enum"])


def test_rows_of_nobody_are_dropped(compiled: CompiledToolCalls, vocabulary: Vocabulary) -> None:
    """A client may have put a key of its own into the request; a request may have ended."""
    examined = examination_of(compiled, vocabulary)
    for key, states in (("forged", {"r": SimpleNamespace(request_index=0)}), (examined.key, {})):
        sent = output(key, [5], [row(0, 5)])
        take_rows([sent], states)
        assert sent.kv_transfer_params is None
    assert examined.report(0)["examined_rows"] == 0
    key = examined.key
    assert key in module._by_key
    del examined
    gc.collect()
    assert key not in module._by_key


@pytest.mark.parametrize("sent", [7, {}, {"key": []}])
def test_what_a_connector_hands_back_stays(sent: Any) -> None:
    """A field of our name that is not ours does not end the thread that reads all outputs."""
    foreign = EngineCoreOutput("r", [5], kv_transfer_params={OUTPUT_FIELD: sent, "remote": "kept"})
    take_rows([foreign], {"r": SimpleNamespace(request_index=0)})
    assert foreign.kv_transfer_params == {OUTPUT_FIELD: sent, "remote": "kept"}


def test_vllm_takes_them_out_before_it_looks_at_its_outputs(
    compiled: CompiledToolCalls, vocabulary: Vocabulary
) -> None:
    patch_vllm()
    examined = examination_of(compiled, vocabulary)
    processor = OutputProcessor(None, log_stats=False)
    sent = output(examined.key, [5], [row(0, 5)])
    assert not processor.process_outputs([sent]).request_outputs
    assert sent.kv_transfer_params is None


def test_the_lists_are_bounded(
    compiled: CompiledToolCalls, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_OVERRIDES", 3)
    monkeypatch.setattr(module, "MAX_TOKENS", 7)
    examined = examination_of(compiled, vocabulary)
    turn = [*render_tool_calls([ToolCall("get-weather", 0, '{"units":"celsius"}')], vocabulary)]
    assert len(turn) > 9
    chances = [0.1, 0.9, 0.2, 0.8, 0.3, 0.7, 0.1, 0.1, 0.1]
    examined.take(0, turn, [row(at, 5, probability=chance).to_list() for at, chance in enumerate(chances)])
    report = examined.report(0)
    assert [override["position"] for override in report["overrides"]] == [1, 3, 5]
    assert (report["overrides_count"], report["examined_rows"], len(report["tokens"])) == (9, 9, 7)


@pytest.mark.parametrize(("switch", "asks"), [("overrides", True), ("on", False), ("off", False)])
def test_only_the_hook_names_a_request(switch: str, asks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"constrained_k2_diagnostics": switch, ROWS_KEY: "forged"}
    request = ChatCompletionRequest(
        model="m", messages=[{"role": "user", "content": "Hi"}], tools=[TOOL], vllm_xargs=given
    )
    constrain_request(request, thinking=False)
    examined = RequestState.of(request).examination
    assert (examined is not None) == asks
    assert (request.vllm_xargs or {}).get(ROWS_KEY) == (examined.key if examined else None)
