"""Which route a server takes, what is refused at its start, what its log says, and which requests it marks."""

import asyncio
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm import SamplingParams, version
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.request import Request
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from constrained_k2 import InvalidRequest, Vocabulary
from constrained_k2.formats import FORMATS
from constrained_k2.vllm_plugin.api_server import admission as backend_admission
from constrained_k2.vllm_plugin.api_server import patched
from constrained_k2.vllm_plugin.api_server.admission import Admission
from constrained_k2.vllm_plugin.shared.byte_compiler import byte_compiler
from constrained_k2.vllm_plugin.shared.constraint import is_tagged, precompile_of, tag
from constrained_k2.vllm_plugin.shared.flags import TOOL_PARSER_NAME
from constrained_k2.vllm_plugin.shared.route import choose_route, route_of
from constrained_k2.vllm_plugin.shared.server import Server, vocabulary_of_model
from constrained_k2.vllm_plugin.shared.settings import REQUEST_FIELDS, SETTINGS, Settings, settings_in
from constrained_k2.vllm_plugin.shared.token_limits import token_limits_in
from constrained_k2.vllm_plugin.start.front_end import report_front_end, report_version
from constrained_k2.vllm_plugin.start.versions import VERSIONS
from tests.kit.tools import tool
from tests.vllm_plugin.patched import patch_vllm
from tests.vllm_plugin.served import PROCESSOR, REQUIRED, asking

NONE = REQUIRED | {"tool_choice": "none"}


def config(
    route: Any = None, processors: Any = None, *, speculative: bool = False, v2: bool = False, ours: Any = None,
    **model: Any,
) -> Any:  # fmt: skip
    """As much of a ``VllmConfig`` as the route is read from."""
    given = {"logits_processors": processors, "skip_tokenizer_init": False, "is_diffusion": False,
             "runner_type": "generate"}  # fmt: skip
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
        (config("structured_output", is_diffusion=True), "no structured outputs"),
        (config("structured_output", runner_type="pooling"), "no structured outputs"),
        (config("both"), "route: must be 'structured_output' or 'logits_processor', not 'both'"),
        (config(ours={"finish_resrve": 1}), "additional_config.constrained_k2: .*Use strict, "),
        (config(ours={"strict": {"min": "strict", "max": "json_object"}}), "strict"),
        (config(ours={"strict": {"false": "strict"}}), r"strict\.false: unknown level 'strict'"),
        *((config(ours={"engines": wrong}), "engines") for wrong in (["outlines"], [], "xgrammar")),
        (config(ours={"repair": "off"}), "additional_config.constrained_k2.repair"),
        (config(ours={"undeclared_keys": "deny"}), "additional_config.constrained_k2.undeclared_keys"),
        *((config(ours={"finish_reserve": wrong}), "finish_reserve: must be a whole number from 0 to 4096")
          for wrong in (-1, 4097, "64", True)),
        *((config(ours={"memory_mib": wrong}), "memory_mib: must be a whole number") for wrong in (-1, 1.5, "16", True, None)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_wrong_flags_are_refused_at_the_start(vllm_config: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        route_of(vllm_config)


def test_every_setting_and_request_field_is_in_a_table() -> None:
    assert {row.name for row in SETTINGS} == set(Settings.__struct_fields__)
    for row in (*SETTINGS, *REQUEST_FIELDS):
        assert row.expected and row.meaning
    for row in SETTINGS:
        with pytest.raises(InvalidRequest, match=row.name):
            settings_in(config(ours={row.name: object()}))
    good: dict[str, Any] = {"finish_reserve": 64, "memory_mib": 1}
    assert settings_in(config(ours=good)) == Settings(**good)


@pytest.mark.parametrize(
    ("given", "route"),
    [
        ({}, "structured_output"),
        ({"additional_config": {"x": 1, "constrained_k2": {"repair": False}}}, "structured_output"),
        ({"logits_processors": ["other:Processor"]}, "structured_output"),
        ({"logits_processors": [PROCESSOR]}, None),
        ({"additional_config": {"constrained_k2": {"route": "logits_processor"}}}, "logits_processor"),
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


def test_only_requests_with_a_constraint_are_marked(small_vocabulary: Vocabulary) -> None:
    for extra in (None, {}, {"constrained_k2": "off"}, {"other": 1}):
        params = SamplingParams(extra_args=extra)
        assert admitted(small_vocabulary, params) == params


@pytest.mark.parametrize(("seconds", "precompile"), [(0.0, [0, 1]), (60.0, [])])
def test_the_engine_core_is_told_which_tools_were_slow(
    small_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch, seconds: float, precompile: list[int]
) -> None:
    """On either route: it takes the tag off before the workers of the logits-processor route get the request."""
    monkeypatch.setattr(backend_admission, "SLOW_SECONDS", seconds)
    for vocabulary, expected in ((small_vocabulary, precompile), (None, [])):
        given = asking({"tools": [tool(name, {"title": name}) for name in "ab"]})
        own = admitted(vocabulary, given)
        assert is_tagged(own) and precompile_of(own) == expected
        assert given.structured_outputs is None  # the caller's own are left alone: several requests may share them


def test_structured_outputs_stay_vllms_where_no_tool_may_be_called(small_vocabulary: Vocabulary) -> None:
    asked = StructuredOutputsParams(json_object=True)
    own = admitted(small_vocabulary, asking(NONE, structured_outputs=asked))
    markers = small_vocabulary.format
    assert own.structured_outputs == asked
    assert not is_tagged(own)
    assert own.bad_words_token_ids == [[markers.section_begin], [markers.call_begin]]


@pytest.mark.parametrize("route", ["structured_output", "logits_processor"])
@pytest.mark.parametrize("wire_format", FORMATS, ids=lambda each: each.name)
def test_limits_beside_calls_that_are_forbidden(
    small_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch, route: str, wire_format: Any
) -> None:
    """Within a transition of several tokens the masks allow few tokens: vLLM's own limits might forbid them all."""
    monkeypatch.setattr(Server, "wire_format", wire_format)
    for regex in (None, StructuredOutputsParams(regex="a")):  # these are left to vLLM, with its limits
        given = asking(NONE, thinking_token_budget=3, allowed_token_ids=[5], structured_outputs=regex)
        sent = admitted(small_vocabulary if route == "structured_output" else None, given)
        is_taken = wire_format.has_long_transitions and regex is None
        assert (sent.thinking_token_budget is None) == (sent.allowed_token_ids is None) == is_taken
        limits = token_limits_in(sent.extra_args)
        assert (limits.thinking_token_budget, limits.allowed_token_ids) == ((3, (5,)) if is_taken else (None, None))


def test_schemas_are_compiled_in_the_format_of_the_served_model(k3_model: Path) -> None:
    before = byte_compiler(Settings())
    config = SimpleNamespace(
        tokenizer=str(k3_model), get_vocab_size=lambda: None, tokenizer_revision=None, trust_remote_code=True
    )
    read = vocabulary_of_model(config)
    assert read.format.argument_encoding == "xtml"
    assert byte_compiler(Settings()).vocabulary.format.argument_encoding == "xtml"
    assert before is not byte_compiler(Settings())


def test_the_mark_survives_the_way_to_the_engine_core_and_no_client_can_make_it() -> None:
    params = asking(REQUIRED, max_tokens=5)
    tag(params, [0])
    sent = EngineCoreRequest("a", [1], None, params, None, 0.0, None, None, None)
    received = MsgpackDecoder(EngineCoreRequest).decode(MsgpackEncoder().encode(sent))
    assert is_tagged(Request.from_engine_core_request(received, None).sampling_params)
    forged = SamplingParams(structured_outputs=params.structured_outputs)
    forged.structured_outputs._backend = "xgrammar"  # vLLM's validation sets it, whatever is asked for
    assert not is_tagged(forged)


def test_requests_and_answers_of_other_tool_parsers_are_vllms() -> None:
    """On a server with our flags: replaced functions pass everything on where another tool parser is chosen."""

    async def vllm(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    other = SimpleNamespace(tool_parser_cls=SimpleNamespace(name="hermes"))
    renderer, serving, processor = SimpleNamespace(parser=other), SimpleNamespace(parser_cls=other), SimpleNamespace()
    assert asyncio.run(patched.preprocess_chat(vllm)(renderer, 1, a=2)) == ((renderer, 1), {"a": 2})
    answer = patched.chat_completion_full_generator(vllm)(serving, "request", "results", 1, a=2)
    assert asyncio.run(answer) == ((serving, "request", "results", 1), {"a": 2})
    assert asyncio.run(patched.process_inputs(vllm)(processor, 1, a=2)) == ((processor, 1), {"a": 2})
    assert patched.get_parser(lambda *_: other)("cls", "hermes") is other


# The log: which requests are constrained, and what was tested


def report(caplog: pytest.LogCaptureFixture, ours: Any, **flags: Any) -> None:
    caplog.set_level("INFO", "vllm.constrained_k2")
    config = SimpleNamespace(additional_config={"constrained_k2": ours}, logits_processors=None)
    report_front_end(SimpleNamespace(**flags), config)


@pytest.mark.parametrize(
    ("parser", "level", "ours", "said"),
    [
        ("kimi_k2", "auto", {"route": "structured_output"}, "Add --tool-strict-level parameter"),
        ("kimi_k2", None, {"route": "structured_output"}, "Add --tool-strict-level parameter"),  # as by default in 0.33
        ("kimi_k2", "function", {"route": "structured_output"}, "leaves its arguments free"),
        ("kimi_k2", "parameter", {"route": "structured_output"}, ""),
        ("kimi_k2", "auto", {"route": "structured_output", "adopt": "prompt"}, ""),
        ("kimi_k2", "parameter", {"route": "structured_output", "adopt": "off"}, "Leave out adopt"),
        ("kimi_k2", "parameter", {}, "no request is constrained"),
        ("kimi_k3", "parameter", {"route": "structured_output"}, "Add the setting adopt: 'prompt', or use"),
        ("kimi_k3", "auto", {"route": "structured_output", "adopt": "prompt"}, ""),
        ("kimi_k2_constrained", "auto", {"route": "structured_output"}, ""),
        (None, "auto", {"route": "structured_output"}, ""),
    ],
)
def test_the_log_says_who_is_constrained(
    caplog: pytest.LogCaptureFixture, parser: str | None, level: str | None, ours: Any, said: str
) -> None:
    report(caplog, ours, tool_call_parser=parser, tool_strict_level=level)
    (record,) = caplog.records
    expected = f"front end Python, tool parser {parser or 'none'}, route {ours.get('route', 'none')}"
    assert expected in record.getMessage()
    assert said in record.getMessage() and (record.levelname == "WARNING") == bool(said)


@pytest.mark.parametrize(("command", "shown"), [("serve", "Rust"), ("launch", "Python")])
def test_only_vllm_serve_starts_the_rust_front_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, command: str, shown: str
) -> None:
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", "1")
    flags = {"subparser": command, "tool_call_parser": "kimi_k2", "tool_strict_level": "parameter"}
    report(caplog, {"route": "structured_output"}, **flags)
    assert f"front end {shown}, " in caplog.text


@pytest.mark.parametrize(
    ("number", "is_cpu", "said"),
    [
        ("0.32.0", True, "vLLM 0.32.0 on a CPU: tested in CI"),
        ("0.32.0+cpu", True, "vLLM 0.32.0+cpu on a CPU: tested in CI"),
        ("0.32.7", True, "vLLM 0.32.7 on a CPU: not run. vLLM 0.32.0 on a CPU: tested in CI"),
        ("0.33.0", True, "vLLM 0.33.0 on a CPU: tested by hand, on its Python sources"),
        ("0.33.0", False, "vLLM 0.33.0 on a GPU: not run. vLLM 0.33.0 on a CPU: tested by hand"),
        ("0.99.0", True, "vLLM 0.99.0 on a CPU: not run. vLLM 0.33.0 on a CPU: tested by hand"),
    ],
)
def test_the_log_says_what_was_tested(
    number: str, is_cpu: bool, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(version, "__version__", number)
    monkeypatch.setattr(type(current_platform), "is_cpu", lambda _: is_cpu)
    caplog.set_level("INFO", "vllm.constrained_k2")
    report_version()
    (record,) = caplog.records
    assert said in record.getMessage()
    assert (record.levelname == "WARNING") == ("not run" in said)


def test_each_minor_version_is_listed_once() -> None:
    minors = [row.minor for row in VERSIONS]
    assert len(set(minors)) == len(minors)
    assert all(row.on_cpu or row.on_gpu for row in VERSIONS)
