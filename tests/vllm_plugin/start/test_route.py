"""Which route a server takes, what is refused at its start, and what of vLLM the backend route leans on."""

import asyncio
from argparse import Namespace
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.request import Request
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar
from vllm.v1.structured_output.request import StructuredOutputRequest

from constrained_k2 import InvalidRequest, Vocabulary
from constrained_k2.vllm_plugin.api_server import admission as backend_admission
from constrained_k2.vllm_plugin.api_server import patched_answers, patched_requests
from constrained_k2.vllm_plugin.api_server.admission import Admission
from constrained_k2.vllm_plugin.engine_core.grammar import ToolCallGrammar
from constrained_k2.vllm_plugin.shared.constraint import is_tagged, precompile_of, tag
from constrained_k2.vllm_plugin.shared.flags import TOOL_PARSER_NAME
from constrained_k2.vllm_plugin.shared.route import choose_route, route_of
from constrained_k2.vllm_plugin.shared.settings import Server
from tests.kit.tools import tool
from tests.vllm_plugin.patched import patch_vllm
from tests.vllm_plugin.served import PROCESSOR, REQUIRED, asking

NONE = REQUIRED | {"tool_choice": "none"}


def config(
    route: Any = None, processors: Any = None, *, speculative: bool = False, v2: bool = False, ours: Any = None,
    **model: Any,
) -> Any:  # fmt: skip
    """As much of a ``VllmConfig`` as the route is read from."""
    given = {
        "logits_processors": processors,
        "skip_tokenizer_init": False,
        "is_diffusion": False,
        "runner_type": "generate",
    }
    return SimpleNamespace(
        additional_config={"constrained_k2": ours} if ours else {"constrained_k2": {"route": route}} if route else {},
        model_config=SimpleNamespace(**(given | model)),
        speculative_config=SimpleNamespace() if speculative else None,
        use_v2_model_runner=v2,
    )


@pytest.mark.parametrize(
    ("vllm_config", "route"),
    [
        (config(), None),
        (config("structured_output"), "structured_output"),
        (config("structured_output", ["other:Processor"]), "structured_output"),
        (config("structured_output", speculative=True), "structured_output"),
        (config(None, [PROCESSOR]), "logits_processor"),
        (config("logits_processor", [PROCESSOR]), "logits_processor"),
        (config(None, ["other:Processor", PROCESSOR]), "logits_processor"),
        (config(None, [PROCESSOR], speculative=True, v2=True), "logits_processor"),
    ],
)
def test_the_route_follows_the_flags(vllm_config: Any, route: Any) -> None:
    assert route_of(vllm_config) == route


@pytest.mark.parametrize(
    ("vllm_config", "message"),
    [
        (config("structured_output", [PROCESSOR]), "runs our logits processor too.* Leave out --logits-processors"),
        (config("logits_processor"), "does not run our logits processor.* Add --logits-processors"),
        (config(None, [PROCESSOR], speculative=True), "no logits processors under speculative decoding.* Leave out"),
        (config("both"), "route: must be 'structured_output' or 'logits_processor', not 'both'"),
        (config(ours={"finish_reserve": 100_000}), "finish_reserve: must be a whole number from 0 to 4096"),
        (config(ours={"finish_resrve": 1}), "additional_config.constrained_k2: .*Use strict, "),
        (config("structured_output", is_diffusion=True), "no structured outputs"),
        (config("structured_output", runner_type="pooling"), "no structured outputs"),
    ],
)
def test_wrong_flags_are_refused_at_the_start(vllm_config: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        route_of(vllm_config)


@pytest.mark.parametrize(
    ("given", "route"),
    [
        ({"tool_call_parser": TOOL_PARSER_NAME}, "structured_output"),
        ({"tool_call_parser": TOOL_PARSER_NAME, "additional_config": {"x": 1, "constrained_k2": {"repair": False}}}, "structured_output"),
        ({"tool_call_parser": TOOL_PARSER_NAME, "logits_processors": ["other:Processor"]}, "structured_output"),
        ({"tool_call_parser": TOOL_PARSER_NAME, "logits_processors": [PROCESSOR]}, None),
        ({"tool_call_parser": TOOL_PARSER_NAME, "additional_config": {"constrained_k2": {"route": "logits_processor"}}}, "logits_processor"),
        ({"tool_call_parser": "kimi_k2"}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_the_tool_parser_brings_the_backend(given: dict[str, Any], route: Any) -> None:
    args = Namespace(**given)
    before = given.get("additional_config") or {}
    choose_route(args)
    choose_route(args)  # the main process and its API servers read the same arguments
    after = getattr(args, "additional_config", None) or {}
    ours = after.get("constrained_k2", {})
    assert ours.get("route") == route
    assert before.items() <= (after | {"constrained_k2": before.get("constrained_k2")}).items()
    assert before.get("constrained_k2", {}).items() <= ours.items()


def test_a_servers_command_line_is_read_with_its_route() -> None:
    patch_vllm()
    args = Namespace(model="nowhere", tool_call_parser=TOOL_PARSER_NAME, additional_config={})
    expected = {"constrained_k2": {"route": "structured_output"}}
    assert AsyncEngineArgs.from_cli_args(args).additional_config == expected
    assert args.additional_config == expected  # what API servers are started with


def test_a_process_that_only_renders_reads_the_settings_from_its_command_line() -> None:
    """It has no engine, and so nothing that reads a ``VllmConfig``."""
    patch_vllm()
    given = {"constrained_k2": {"repair": False}}
    AsyncEngineArgs.from_cli_args(Namespace(model="m", tool_call_parser=TOOL_PARSER_NAME, additional_config=given))
    assert not Server.settings.repair


def admitted(vocabulary: Vocabulary | None, params: SamplingParams, **arguments: Any) -> SamplingParams:
    """Return the parameters after admission, cloned as ``process_inputs`` does."""
    admission = Admission(vocabulary)
    arguments["params"] = params
    spec = admission.check(arguments)
    own: SamplingParams = arguments["params"].clone()
    if spec is not None:
        admission.constrain(SimpleNamespace(sampling_params=own), spec)
    return own


def test_only_requests_with_a_spec_are_marked(small_vocabulary: Vocabulary) -> None:
    for extra in (None, {}, {"constrained_k2": "off"}, {"other": 1}):
        params = SamplingParams(extra_args=extra)
        assert admitted(small_vocabulary, params) == params
    given = asking(REQUIRED)
    assert is_tagged(admitted(small_vocabulary, given))
    assert given.structured_outputs is None  # the caller's own are left alone: several requests may share them


def test_the_engine_core_learns_on_either_route_what_was_checked(small_vocabulary: Vocabulary) -> None:
    """Before the workers of the logits-processor route get the request, it takes the tag off."""
    for vocabulary in (small_vocabulary, None):
        params = admitted(vocabulary, asking(REQUIRED))
        assert is_tagged(params) and precompile_of(params) is not None


@pytest.mark.parametrize(("seconds", "precompile"), [(0.0, [0, 1]), (60.0, [])])
def test_the_engine_core_is_told_which_tools_were_slow(
    small_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch, seconds: float, precompile: list[int]
) -> None:
    monkeypatch.setattr(backend_admission, "SLOW_SECONDS", seconds)
    given = asking({"tools": [tool(name, {"title": name}) for name in "ab"]})
    assert precompile_of(admitted(small_vocabulary, given)) == precompile


def test_structured_outputs_stay_vllms_where_no_tool_may_be_called(small_vocabulary: Vocabulary) -> None:
    asked = StructuredOutputsParams(json_object=True)
    own = admitted(small_vocabulary, asking(NONE, structured_outputs=asked))
    markers = small_vocabulary.format
    assert own.structured_outputs == asked
    assert not is_tagged(own)
    assert own.bad_words_token_ids == [[markers.section_begin], [markers.call_begin]]


@pytest.mark.parametrize(
    ("params", "arguments", "message"),
    [
        (asking(extra={"constrained_k2": "{"}), {}, "must be JSON"),
        (asking(REQUIRED, structured_outputs=StructuredOutputsParams(regex="a")), {}, "structured_outputs"),
        (asking(REQUIRED, trace_decode_token_ids=[1]), {}, "trace_decode_token_ids"),
        (asking(REQUIRED), {"resumable": True}, "stream"),
    ],
)
def test_what_the_mask_could_not_hold_against_is_refused(
    small_vocabulary: Vocabulary, params: SamplingParams, arguments: Any, message: str
) -> None:
    with pytest.raises(VLLMValidationError, match=message):
        admitted(small_vocabulary, params, **arguments)


def test_the_mark_survives_the_way_to_the_engine_core_and_no_client_can_make_it() -> None:
    params = asking(REQUIRED, max_tokens=5)
    tag(params, [0])
    sent = EngineCoreRequest("a", [1], None, params, None, 0.0, None, None, None)
    received = MsgpackDecoder(EngineCoreRequest).decode(MsgpackEncoder().encode(sent))
    assert is_tagged(Request.from_engine_core_request(received, None).sampling_params)
    forged = SamplingParams(structured_outputs=params.structured_outputs)
    forged.structured_outputs._backend = "xgrammar"  # vLLM's validation sets it, whatever is asked for
    assert not is_tagged(forged)


class TestWhatOfVllmTheRouteLeansOn:
    """If one of these fails with a new vLLM, its name says what has changed."""

    def test_a_request_whose_reasoning_has_ended_is_masked_from_its_first_token(self) -> None:
        structured = StructuredOutputRequest(StructuredOutputsParams(grammar="x"), reasoning_ended=True)
        manager = SimpleNamespace(enable_in_reasoning=False)
        request = SimpleNamespace(structured_output_request=structured)
        assert tuple(StructuredOutputManager._get_constraint_bounds(manager, request, [1, 2])) == (0, 0)

    def test_a_request_waits_for_a_future_and_fails_with_it(self) -> None:
        future: Future[Any] = Future()
        structured = StructuredOutputRequest(StructuredOutputsParams(grammar="x"))
        structured.grammar = future
        assert structured.grammar is None
        future.set_exception(ValueError("no"))
        assert isinstance(structured.grammar, ValueError)

    def test_the_grammar_is_a_whole_one(self) -> None:
        assert not ToolCallGrammar.__abstractmethods__
        expected = {"accept_tokens", "validate_tokens", "rollback", "fill_bitmask", "is_terminated", "reset"}
        assert expected == StructuredOutputGrammar.__abstractmethods__


def test_requests_and_answers_of_other_tool_parsers_are_vllms() -> None:
    """On a server with our flags: replaced functions pass everything on where another tool parser is chosen."""

    async def vllm(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    other = SimpleNamespace(tool_parser_cls=SimpleNamespace(name="hermes"))
    renderer, serving, processor = SimpleNamespace(parser=other), SimpleNamespace(parser_cls=other), SimpleNamespace()
    assert asyncio.run(patched_requests.preprocess_chat(vllm)(renderer, 1, a=2)) == ((renderer, 1), {"a": 2})
    answer = patched_answers.chat_completion_full_generator(vllm)(serving, "request", "results", 1, a=2)
    assert asyncio.run(answer) == ((serving, "request", "results", 1), {"a": 2})
    assert asyncio.run(patched_requests.process_inputs(vllm)(processor, 1, a=2)) == ((processor, 1), {"a": 2})
    assert patched_answers.get_parser(lambda *_: other)("cls", "hermes") is other
