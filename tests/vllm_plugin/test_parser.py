"""Our parsing inside vLLM's own composition of parsers, on vLLM's own request objects, without a server."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from transformers import AutoTokenizer
from vllm import SamplingParams
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.exceptions import VLLMValidationError
from vllm.parser import ParserManager

from constrained_k2 import InvalidRequest, ToolCall, ToolCallSpec, Vocabulary, render_tool_calls
from constrained_k2.fixtures import write_tokenizer
from constrained_k2.vllm_plugin import admission, register, settings
from constrained_k2.vllm_plugin.finish_reason import CutDelta
from tests.parsing.transcripts import ids_of_text

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALLS = [ToolCall("f", 0, '{"a": "北京"}'), ToolCall("f", 1, "{}")]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(directory)
    return AutoTokenizer.from_pretrained(directory, trust_remote_code=True)


@pytest.fixture(scope="module")
def vocabulary(tokenizer: Any) -> Vocabulary:
    return Vocabulary.from_tokenizer(tokenizer)


@pytest.fixture(params=[None, "kimi_k2"], ids=["no_reasoning_parser", "reasoning_parser"])
def parser_class(request: pytest.FixtureRequest, tokenizer: Any) -> Any:
    register()
    register()  # vLLM may call it more than once
    return ParserManager.get_parser(
        tool_parser_name="kimi_k2_constrained",
        reasoning_parser_name=request.param,
        enable_auto_tools=True,
        tokenizer=tokenizer,
    )


def chat(**fields: Any) -> ChatCompletionRequest:
    body = {"messages": [{"role": "user", "content": "x"}], "model": "m", "tools": [TOOL]} | fields
    return ChatCompletionRequest.model_validate(body)


def make(parser_class: Any, tokenizer: Any, request: Any) -> Any:
    return parser_class(tokenizer, request.tools)


def adjusted(parser_class: Any, tokenizer: Any, request: Any) -> Any:
    return make(parser_class, tokenizer, request).adjust_request(request)


def spec_of(request: Any) -> ToolCallSpec:
    return ToolCallSpec.from_json(request.vllm_xargs["constrained_k2"])


def test_a_chat_request_is_lowered(parser_class: Any, tokenizer: Any) -> None:
    call = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    history = [{"role": "assistant", "tool_calls": [call, call]}, {"role": "tool", "tool_call_id": "x", "content": "1"}]
    request = adjusted(parser_class, tokenizer, chat(messages=history, vllm_xargs={"other": 1}, tool_choice="required"))
    spec = spec_of(request)
    assert (spec.first_index, spec.choice, spec.parallel) == (2, "required", True)
    assert request.vllm_xargs["other"] == 1
    assert request.to_sampling_params(10, {}).extra_args["constrained_k2"] == spec.to_json()
    assert [message["role"] for message in request.messages] == ["assistant", "tool"]
    assert len(list(request.messages[0]["tool_calls"])) == 2  # lazy values were not used up


@pytest.mark.parametrize(
    ("fields", "choice", "max_calls"),
    [
        ({}, "auto", None),
        ({"tool_choice": "none"}, "none", 0),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "required", 1),
        ({"parallel_tool_calls": False}, "auto", 1),
    ],
)
def test_tool_choice(parser_class: Any, tokenizer: Any, fields: Any, choice: str, max_calls: int | None) -> None:
    spec = spec_of(adjusted(parser_class, tokenizer, chat(**fields)))
    assert (spec.choice, spec.max_calls) == (choice, max_calls)


def test_a_responses_request_is_lowered(parser_class: Any, tokenizer: Any) -> None:
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
    request = ResponsesRequest.model_validate({"input": "x", "model": "m", "tools": [tool], "tool_choice": "required"})
    assert spec_of(adjusted(parser_class, tokenizer, request)).choice == "required"


def test_thinking_is_allowed_where_the_model_thinks(parser_class: Any, tokenizer: Any) -> None:
    thinks = parser_class.reasoning_parser_cls is not None
    assert spec_of(adjusted(parser_class, tokenizer, chat())).thinking is thinks
    off = chat(chat_template_kwargs={"thinking": False})
    assert spec_of(adjusted(parser_class, tokenizer, off)).thinking is False


@pytest.mark.parametrize("fields", [{"tools": None}, {"vllm_xargs": {"constrained_k2": "off"}}])
def test_requests_that_are_not_constrained(parser_class: Any, tokenizer: Any, fields: Any) -> None:
    request = adjusted(parser_class, tokenizer, chat(**fields))
    assert not (request.vllm_xargs or {}).get("constrained_k2")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tools": [TOOL, TOOL]}, r"tools\[1\].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}]}, "no value satisfies"),
        ({"vllm_xargs": {"constrained_k2": "{}"}}, r"vllm_xargs.constrained_k2"),
        ({"bad_words": ["a"]}, "bad_words"),
        ({"allowed_token_ids": [1]}, "allowed_token_ids"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
    ],
)
def test_requests_that_cannot_be_constrained(parser_class: Any, tokenizer: Any, fields: Any, message: str) -> None:
    with pytest.raises(VLLMValidationError, match=message):
        adjusted(parser_class, tokenizer, chat(**fields))


def test_a_response_format_beside_tools_that_may_not_be_called(parser_class: Any, tokenizer: Any) -> None:
    request = chat(response_format={"type": "json_object"}, tool_choice="none")
    assert spec_of(adjusted(parser_class, tokenizer, request)).choice == "none"


def config(*processors: str, **ours: Any) -> Any:
    """As much of vLLM's configuration as is read."""
    return SimpleNamespace(
        model_config=SimpleNamespace(logits_processors=list(processors), served_model_name="kimi-k2"),
        additional_config={"constrained_k2": ours} if ours else {},
    )


def test_a_server_without_the_processor_does_not_pretend(parser_class: Any, tokenizer: Any) -> None:
    settings.remember_server(config("other:Processor"), None)
    with pytest.raises(VLLMValidationError, match='"route": "backend"'):
        adjusted(parser_class, tokenizer, chat())
    spec = ToolCallSpec.from_openai({"tools": [TOOL]}).to_json()
    with pytest.raises(ValueError, match='"route": "backend"'):
        admission.check_params(SamplingParams(extra_args={"constrained_k2": spec}))
    adjusted(parser_class, tokenizer, chat(vllm_xargs={"constrained_k2": "off"}))
    settings.remember_server(config("constrained_k2.vllm_plugin:KimiK2LogitsProcessor"), "processor")
    adjusted(parser_class, tokenizer, chat())


UNKEPT = {"type": "object", "minProperties": 2}


def tool_with(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": UNKEPT} | fields}


def test_a_strict_tool_is_kept_whole_or_refused(parser_class: Any, tokenizer: Any) -> None:
    adjusted(parser_class, tokenizer, chat(tools=[tool_with()]))
    adjusted(parser_class, tokenizer, chat(tools=[tool_with(strict=False)]))
    with pytest.raises(VLLMValidationError, match="#/minProperties: the tool is strict"):
        adjusted(parser_class, tokenizer, chat(tools=[tool_with(strict=True)]))


def test_a_server_may_be_stricter_than_its_clients_or_less(parser_class: Any, tokenizer: Any) -> None:
    ours = "constrained_k2.vllm_plugin:KimiK2LogitsProcessor"
    settings.remember_server(config(ours, strict="strict"), "processor")
    for strict in (True, None, False):
        with pytest.raises(VLLMValidationError, match="the tool is strict"):
            adjusted(parser_class, tokenizer, chat(tools=[tool_with(strict=strict)]))
    settings.remember_server(config(ours, strict={"most": "enforce"}), "processor")
    adjusted(parser_class, tokenizer, chat(tools=[tool_with(strict=True)]))
    for wrong in ("maybe", {"least": "strict", "most": "object"}, {"level": "strict"}):
        with pytest.raises(InvalidRequest):
            settings.remember_server(config(ours, strict=wrong), "processor")
    with pytest.raises(InvalidRequest, match="additional_config"):
        settings.remember_server(config(ours, stricter="strict"), "processor")


def test_engines_that_the_server_offers(parser_class: Any, tokenizer: Any) -> None:
    asked = {"vllm_xargs": {"constrained_k2": "xgrammar"}}
    with pytest.raises(VLLMValidationError, match="does not offer 'xgrammar'.*additional-config"):
        adjusted(parser_class, tokenizer, chat(**asked))
    ours = "constrained_k2.vllm_plugin:KimiK2LogitsProcessor"
    settings.remember_server(config(ours, engines=["llguidance", "xgrammar"]), "processor")
    assert spec_of(adjusted(parser_class, tokenizer, chat(**asked))).engine == "xgrammar"
    assert spec_of(adjusted(parser_class, tokenizer, chat())).engine is None
    for wrong in (["outlines"], [], "xgrammar"):
        with pytest.raises(InvalidRequest, match="engines"):
            settings.remember_server(config(ours, engines=wrong), "processor")


def test_what_is_not_kept_is_said_once(parser_class: Any, tokenizer: Any, caplog: pytest.LogCaptureFixture) -> None:
    admission._report.cache_clear()
    request = chat(tools=[tool_with(name="said_once")])
    for _ in range(3):
        adjusted(parser_class, tokenizer, request.model_copy())
    said = [record.getMessage() for record in caplog.records if "said_once" in record.getMessage()]
    assert len(said) == 1
    assert "#/minProperties" in said[0]


def test_a_required_call_is_not_cut_by_stops(parser_class: Any, tokenizer: Any) -> None:
    request = adjusted(parser_class, tokenizer, chat(tool_choice="required", stop=['"'], stop_token_ids=[5]))
    assert (request.stop, request.stop_token_ids) == ([], [])


def test_stops_in_a_stream_never_show_half_a_call(parser_class: Any, tokenizer: Any, vocabulary: Vocabulary) -> None:
    request = adjusted(parser_class, tokenizer, chat(stop=["END"]))
    ids = render_tool_calls(CALLS, vocabulary)[:-2]
    text = vocabulary.decode(ids)
    pieces = [([token], vocabulary.decode([token])) for token in ids]
    shown = read_stream(make(parser_class, tokenizer, request), request, pieces, [1])
    assert shown == read_whole(make(parser_class, tokenizer, request), request, ids, text)
    assert [call[0] for call in shown[2]] == [CALLS[0].id]


def test_beam_search_of_completions_is_refused() -> None:
    register()
    spec = ToolCallSpec.from_openai({"tools": [TOOL]}).to_json()
    request = CompletionRequest.model_validate(
        {"prompt": "x", "model": "m", "use_beam_search": True, "vllm_xargs": {"constrained_k2": spec}}
    )
    with pytest.raises(ValueError, match="use_beam_search"):
        request.to_beam_search_params(10, {})


def read_whole(parser: Any, request: Any, ids: list[int], text: str) -> tuple[str, str, list[tuple[str, str, str]]]:
    reasoning, content, calls = parser.parse(text, request, True, ids)
    return reasoning or "", content or "", [(call.id, call.name, call.arguments) for call in calls or []]


def read_stream(
    parser: Any, request: Any, pieces: list[tuple[list[int], str]], prompt: list[int]
) -> tuple[str, str, list[tuple[str, str, str]]]:
    reasoning, content, calls = "", "", {}
    for number, (ids, text) in enumerate(pieces):
        delta = parser.parse_delta(text, ids, request, prompt, finished=number == len(pieces) - 1)
        if delta is None:
            continue
        reasoning += delta.reasoning or ""
        content += delta.content or ""
        for part in delta.tool_calls:
            call = calls.setdefault(part.index, ["", "", ""])
            call[0] += part.id or ""
            call[1] += part.function.name or ""
            call[2] += part.function.arguments or ""
    return reasoning, content, [(call[0], call[1], call[2]) for call in calls.values()]


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_stream_and_whole_agree(parser_class: Any, tokenizer: Any, vocabulary: Vocabulary, size: int) -> None:
    markers = vocabulary.format
    turn = [markers.think_begin, *vocabulary.encode("Hm 🌦️"), markers.think_end, *vocabulary.encode("Look: <think>")]
    ids = [*turn, *render_tool_calls(CALLS, vocabulary), markers.turn_end]
    request = adjusted(parser_class, tokenizer, chat())
    text = vocabulary.decode(ids[:-1])
    whole = read_whole(make(parser_class, tokenizer, request), request, ids, text)
    assert whole == ("Hm 🌦️", "Look: <think>", [(call.id, call.name, call.arguments) for call in CALLS])
    pieces = [(ids[start : start + size], "") for start in range(0, len(ids), size)]
    assert read_stream(make(parser_class, tokenizer, request), request, pieces, [1]) == whole


def test_reasoning_that_the_prompt_opened(parser_class: Any, tokenizer: Any, vocabulary: Vocabulary) -> None:
    request = adjusted(parser_class, tokenizer, chat())
    ids = [*vocabulary.encode("Hm"), vocabulary.format.think_end, *vocabulary.encode("Yes")]
    prompt = [1, vocabulary.format.think_begin]
    parser = make(parser_class, tokenizer, request)
    parser.set_prompt_token_ids(prompt)
    assert read_whole(parser, request, ids, "") == ("Hm", "Yes", [])
    assert read_stream(make(parser_class, tokenizer, request), request, [(ids, "")], prompt) == ("Hm", "Yes", [])


def test_hidden_reasoning_is_not_streamed(parser_class: Any, tokenizer: Any, vocabulary: Vocabulary) -> None:
    request = adjusted(parser_class, tokenizer, chat(include_reasoning=False))
    ids = [vocabulary.format.think_begin, *vocabulary.encode("Hm"), vocabulary.format.think_end]
    assert read_stream(make(parser_class, tokenizer, request), request, [(ids, "")], [1]) == ("", "", [])


def test_a_cut_off_call_is_not_handed_over(parser_class: Any, tokenizer: Any, vocabulary: Vocabulary) -> None:
    request = adjusted(parser_class, tokenizer, chat())
    ids = render_tool_calls(CALLS, vocabulary)[:-2]
    _, content, calls = read_whole(make(parser_class, tokenizer, request), request, ids, "")
    assert (content, calls) == ("", [(CALLS[0].id, "f", CALLS[0].arguments)])


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_stop_strings(parser_class: Any, tokenizer: Any, vocabulary: Vocabulary, size: int) -> None:
    request = adjusted(parser_class, tokenizer, chat(stop=["n EN"]))
    ids = vocabulary.encode("It is raining in Berlin. Then EN")
    shown = "It is raining in Berlin. The"  # vLLM found its stop string behind this and cut the text
    assert read_whole(make(parser_class, tokenizer, request), request, ids, shown)[1] == shown
    pieces = [(ids[start : start + size], "") for start in range(0, len(ids), size)]
    lengths = [len(shown) * number // len(pieces) for number in range(len(pieces) + 1)]
    pieces = [(part, shown[lengths[n] : lengths[n + 1]]) for n, (part, _) in enumerate(pieces)]
    assert read_stream(make(parser_class, tokenizer, request), request, pieces, [1])[1] == shown


@pytest.mark.parametrize("size", [1, 1000])
def test_a_text_that_no_stop_string_has_ended(
    parser_class: Any, tokenizer: Any, vocabulary: Vocabulary, size: int
) -> None:
    """vLLM's text lacks a last token that ends within a character, whole characters in it included."""
    request = adjusted(parser_class, tokenizer, chat(stop=["END"]))
    (last,) = (n for n in range(vocabulary.size) if vocabulary.token_bytes(n) == "请".encode() + b"\xe5")
    begin = vocabulary.encode("It rains in EN")
    text = vocabulary.decode(begin)
    assert read_whole(make(parser_class, tokenizer, request), request, [*begin, last], text)[1] == f"{text}请\ufffd"
    pieces = [([token], vocabulary.decode([token])) for token in begin] + [([last], "")]
    if size > 1:
        pieces = [([*begin, last], text)]
    assert read_stream(make(parser_class, tokenizer, request), request, pieces, [1])[1] == f"{text}请\ufffd"


def test_requests_without_tools_are_vllms_own(parser_class: Any, tokenizer: Any, vocabulary: Vocabulary) -> None:
    request = adjusted(parser_class, tokenizer, chat(tools=None, chat_template_kwargs={"thinking": False}))
    parser = make(parser_class, tokenizer, request)
    parser._reasoning_parser = None
    assert read_whole(parser, request, vocabulary.encode("Hello"), "Hello")[1] == "Hello"


def test_no_calls_where_none_were_wanted(parser_class: Any, tokenizer: Any, vocabulary: Vocabulary) -> None:
    request = adjusted(parser_class, tokenizer, chat(tool_choice="none", vllm_xargs={"constrained_k2": "off"}))
    ids = render_tool_calls(CALLS, vocabulary)
    assert read_whole(make(parser_class, tokenizer, request), request, ids, "")[2] == []
    assert read_stream(make(parser_class, tokenizer, request), request, [(ids, "")], [1])[2] == []


def test_other_parsers_are_left_alone() -> None:
    register()
    composed = ParserManager.get_parser(tool_parser_name="hermes", enable_auto_tools=True)
    assert "KimiK2" not in composed.__name__
    assert ParserManager.get_parser() is None


def test_another_models_tokenizer_stops_the_server() -> None:
    register()
    with pytest.raises(TypeError, match="kimi_k2_constrained cannot be used with the tokenizer.*neither Kimi's"):
        ParserManager.get_parser(
            tool_parser_name="kimi_k2_constrained",
            enable_auto_tools=True,
            model_name="other",
            tokenizer=SimpleNamespace(get_vocab=dict),
        )


def streamed(parser_class: Any, tokenizer: Any, request: Any, ids: list[int], size: int) -> tuple[Any, Any]:
    """What a stream in such deltas shows, and its last delta."""
    parser = make(parser_class, tokenizer, request)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    pieces = [
        (ids[start : start + size], vocabulary.decode(ids[start : start + size])) for start in range(0, len(ids), size)
    ]
    seen = read_stream(parser, request, pieces, [1])
    return seen, parser


LENIENT = [
    "Look: <|tool_call_begin|>f:0<|tool_call_argument_begin|>{'a': True,}<|tool_call_end|> and more",
    "<|tool_calls_section_begin|>\n<|tool_call_begin|> functions.f:0 \n<|tool_call_argument_begin|>{<|tool_call_end|>\n<|tool_calls_section_end|>",
    '<think>Hm.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": "é"}<|tool_call_end|>',
    "<~|tool_calls_section_begin|><~|tool_call_begin|>functions.f:0<~|tool_call_argument_begin|>{}<~|tool_call_end|><~|tool_calls_section_end|>",
]


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
@pytest.mark.parametrize("text", LENIENT)
def test_unconstrained_requests_are_read_tolerantly(
    parser_class: Any, tokenizer: Any, vocabulary: Vocabulary, text: str, size: int
) -> None:
    off = adjusted(parser_class, tokenizer, chat(vllm_xargs={"constrained_k2": "off"}))
    ids = ids_of_text(text, vocabulary)
    whole = read_whole(make(parser_class, tokenizer, off), off, ids, vocabulary.decode(ids))
    assert [call[:2] for call in whole[2]] == [("functions.f:0", "f")]
    json.loads(whole[2][0][2])
    assert streamed(parser_class, tokenizer, off, ids, size)[0] == whole
    constrained = adjusted(parser_class, tokenizer, chat())
    strict = read_whole(make(parser_class, tokenizer, constrained), constrained, ids, vocabulary.decode(ids))
    assert (strict == whole) is ("<think>" in text)  # that one keeps to the format


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_where_only_whole_calls_are_shown_a_cut_one_is_not(
    parser_class: Any, tokenizer: Any, vocabulary: Vocabulary, size: int
) -> None:
    cut, whole = '{"a"', [*render_tool_calls(CALLS, vocabulary)]
    begun = ids_of_text(f"<|tool_call_begin|>functions.f:7<|tool_call_argument_begin|>{cut}", vocabulary)
    ids = [whole[0], *begun, *whole[1:-1], *begun]
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    for request in (
        chat(vllm_xargs={"constrained_k2": "off"}, stop=["never"]),
        ResponsesRequest.model_validate({"input": "x", "model": "m", "tools": [tool], "vllm_xargs": {"constrained_k2": "off"}}),
    ):  # fmt: skip
        adjusted(parser_class, tokenizer, request)
        seen, parser = streamed(parser_class, tokenizer, request, ids, size)
        assert seen[2] == [(call.id, call.name, call.arguments) for call in CALLS]
        assert not parser._cut


def test_the_last_delta_says_whether_a_call_is_cut(parser_class: Any, tokenizer: Any, vocabulary: Vocabulary) -> None:
    request = adjusted(parser_class, tokenizer, chat(vllm_xargs={"constrained_k2": "off"}))
    for ids, cut in [(render_tool_calls(CALLS, vocabulary), False), (render_tool_calls(CALLS, vocabulary)[:-2], True)]:
        parser = make(parser_class, tokenizer, request)
        parser.parse_delta("", ids[:-1], request, [1], finished=False)
        assert isinstance(parser.parse_delta("", ids[-1:], request, [1], finished=True), CutDelta) is cut


def test_leniencies_are_said_in_the_log(
    parser_class: Any, tokenizer: Any, vocabulary: Vocabulary, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "vllm.constrained_k2")
    request = adjusted(parser_class, tokenizer, chat(vllm_xargs={"constrained_k2": "off"}))
    ids = ids_of_text(LENIENT[0].replace("f:0", "g:0"), vocabulary)
    assert read_whole(make(parser_class, tokenizer, request), request, ids, "")[2]
    said = " ".join(record.getMessage() for record in caplog.records)
    assert all(name in said for name in ("'g'", "bare_id", "no_section", "single_quotes"))


@pytest.mark.parametrize("size", [1, 1000])
def test_a_call_that_was_not_wanted_is_text(
    parser_class: Any, tokenizer: Any, vocabulary: Vocabulary, size: int
) -> None:
    request = adjusted(parser_class, tokenizer, chat(tool_choice="none", vllm_xargs={"constrained_k2": "off"}))
    ids = render_tool_calls(CALLS, vocabulary)
    whole = read_whole(make(parser_class, tokenizer, request), request, ids, "")
    assert whole == ("", vocabulary.decode(ids), [])
    assert streamed(parser_class, tokenizer, request, ids, size)[0] == whole
