"""Patches of the API server, in the order of a request: prompt, admission, answer, metrics.

Answers are parsed by token id. vLLM reports ``tool_calls`` for every whole answer with calls, and for every stream that
has shown a part of one and was not ended by ``max_tokens``; we report it for whole calls only, and ``length`` if one is
cut off. The parser's findings arrive in a stream by the delta's class, for a whole answer by the request's state.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import cache
from inspect import signature
from typing import Any

from openai.types.responses import ResponseIncompleteEvent
from vllm import SamplingParams
from vllm.entrypoints.openai.responses.protocol import ResponsesResponse

from constrained_k2.vllm_plugin.api_server import metrics, repair, request_hook
from constrained_k2.vllm_plugin.api_server.functions import set_default_choice
from constrained_k2.vllm_plugin.api_server.parser import LastDelta, ParsingByTokenId
from constrained_k2.vllm_plugin.api_server.request_state import Ending, RequestState
from constrained_k2.vllm_plugin.api_server.stop_strings import TextTokens, stop_in_text
from constrained_k2.vllm_plugin.shared.constraint import carries_constraint
from constrained_k2.vllm_plugin.shared.route import parses_with_us
from constrained_k2.vllm_plugin.shared.server import vocabulary_of
from constrained_k2.vllm_plugin.shared.transport import FIELD
from constrained_k2.vllm_plugin.start.entry import ADMISSION
from constrained_k2.vllm_plugin.start.patch import wrapper

_signature = cache(signature)


@wrapper
async def preprocess_chat(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Repair messages and tools, and compile the tools, if the server uses our tool parser."""
    if not parses_with_us(self.parser):
        return await original(self, *args, **kwargs)
    call = _signature(original).bind(self, *args, **kwargs)
    request = call.arguments["request"]
    set_default_choice(request)
    tokenizer = self.renderer.get_tokenizer()
    if vocabulary_of(tokenizer).format.argument_encoding == "xtml":
        state = repair.prepare(call.arguments, None, None)
    else:
        template = repair.template_of(call.arguments, tokenizer, self.model_config)
        state = repair.prepare(call.arguments, repair.specials_of(tokenizer), template)
    with state.rendering(request):
        thinking = request_hook.may_think(self.parser, tokenizer)
        await request_hook.precompile(request, state, thinking=thinking)
        return await original(*call.args, **call.kwargs)


@wrapper
def postprocess_messages(original: Any, messages: list[Any]) -> None:
    """Leave arguments as they were written, if the request's state says so."""
    state = RequestState.current()
    if state is None or not state.exact_arguments:
        original(messages)
        return
    with repair.restored_arguments(messages):
        original(messages)


@wrapper
def process_inputs(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Check a request, take over its limits on tokens, and tag it for the engine core."""
    admission = getattr(self, ADMISSION, None)
    if admission is None:
        return original(self, *args, **kwargs)
    call = _signature(original).bind(self, *args, **kwargs)
    compiled = admission.check(call.arguments)
    request = original(*call.args, **call.kwargs)
    if compiled is not None:
        admission.constrain(request, compiled)
    return request


CORRECTED = ("stop", "tool_calls")
"""vLLM's reasons that a cut call overrules; others, such as ``abort``, are left alone."""


@wrapper
def get_parser(original: Any, cls: Any, *args: Any, **kwargs: Any) -> Any:
    """Mix parsing by token id into the Parser that vLLM composes with our tool parser."""
    composed = original(cls, *args, **kwargs)
    return type("KimiK2Parser", (ParsingByTokenId, composed), {}) if parses_with_us(composed) else composed


@wrapper
async def chat_completion_full_generator(
    original: Any, self: Any, request: Any, result_generator: Any, *args: Any, **kwargs: Any
) -> Any:
    """Correct the choices of a whole answer, and add diagnostics."""
    if not parses_with_us(self.parser_cls):
        return await original(self, request, result_generator, *args, **kwargs)
    last: Any = None

    async def watched() -> AsyncIterator[Any]:
        nonlocal last
        async for last in result_generator:
            yield last

    state = RequestState.of(request)
    state.endings.clear()
    answer = await original(self, request, watched(), *args, **kwargs)
    if last is not None and hasattr(answer, "choices"):
        for choice, output, ending in zip(answer.choices, last.outputs, state.endings, strict=True):
            if (ending.is_cut or output.finish_reason == "length") and choice.finish_reason in CORRECTED:
                choice.finish_reason = "length"
            elif choice.finish_reason == "tool_calls" and not choice.message.tool_calls:
                choice.finish_reason = "stop"
            drop_empty_content(request, choice)
            if ending.declined is not None and not choice.message.tool_calls and choice.message.content is None:
                choice.message.content = ""  # an answer without calls is a text, if only an empty one
            state.add_diagnostics(choice, ending.declined)
    return answer


@wrapper
def maybe_filter_parallel_tool_calls(original: Any, item: Any, request: Any) -> Any:
    """Correct one choice of a stream, or its next piece, and add diagnostics to the last."""
    item = original(item, request)
    delta = getattr(item, "delta", None)
    ending = delta.ending if isinstance(delta, LastDelta) else Ending()
    if ending.is_cut and item.finish_reason in CORRECTED:
        item.finish_reason = "length"
    if delta is not None and (state := RequestState.attached_to(request)) is not None:
        state.add_diagnostics(item, ending.declined)
    return item


@wrapper
def stream_step(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Correct the reason that comes with a stream's delta."""
    step = original(self, *args, **kwargs)
    if isinstance(step.delta, LastDelta) and step.delta.ending.is_cut and step.finish_reason in CORRECTED:
        return step._replace(finish_reason="length")
    return step


@wrapper
def from_new_request(original: Any, cls: Any, tokenizer: Any, request: Any) -> Any:
    """Have the detokenizer of a constrained request look for stop strings in the text alone."""
    detokenizer = original(cls, tokenizer, request)
    params = request.sampling_params
    # vLLM's /derender hands a client's request over, which may have any field.
    constrained = isinstance(params, SamplingParams) and carries_constraint(params.extra_args)
    if constrained and params.stop and tokenizer is not None:
        stop_in_text(detokenizer, TextTokens(vocabulary_of(tokenizer), request.prompt_token_ids or ()))
    return detokenizer


class _ResponseIncomplete(ResponseIncompleteEvent):
    """The end of a stream that was cut off, with vLLM's own response, as vLLM's other events have it."""

    response: ResponsesResponse


@wrapper
async def responses(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Say of a response that was cut off, whole or streamed, in which item, and that it is incomplete."""
    answer = await original(self, *args, **kwargs)
    if parses_with_us(self.parser):
        if isinstance(answer, AsyncGenerator):
            return _incomplete_where_cut(answer)
        if isinstance(answer, ResponsesResponse) and answer.status == "incomplete":
            _cut_last(answer.output)
    return answer


def drop_empty_content(request: Any, choice: Any) -> None:
    """Set content without text to null, as beside other calls: vLLM writes "" beside calls that had to be made."""
    if request.tools and not choice.message.content:
        choice.message.content = None


async def _incomplete_where_cut(events: AsyncGenerator[Any, None]) -> AsyncIterator[Any]:
    """Correct the end of a stream: an item's last event is held back until the next one shows what ended it."""
    held: list[Any] = []
    async with aclosing(events):
        async for given in events:
            event = given
            if event.type == "response.completed" and event.response.status == "incomplete":
                _cut_last(event.response.output)
                _cut_last([done.item for done in held])
                event = _ResponseIncomplete(
                    type="response.incomplete", sequence_number=event.sequence_number, response=event.response
                )
            for done in held:
                yield done
            held = [event] if event.type == "response.output_item.done" else []
            if not held:
                yield event
        for done in held:
            yield done


def _cut_last(items: list[Any]) -> None:
    """Mark the last item as incomplete, in place. A call is shown only if it is whole."""
    if items and items[-1].type in {"message", "reasoning"}:
        items[-1].status = "incomplete"


@wrapper
def stat_logger_init(original: Any, self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
    """Expose every metric of a server at 0."""
    original(self, vllm_config, *args, **kwargs)
    metrics.expose(vllm_config.model_config.served_model_name, self.engine_indexes)


@wrapper
def stat_logger_record(
    original: Any, self: Any, scheduler_stats: Any, *args: Any, engine_idx: int = 0, **kwargs: Any
) -> None:
    """Record what an engine has counted."""
    original(self, scheduler_stats, *args, engine_idx=engine_idx, **kwargs)
    delta = getattr(scheduler_stats, FIELD, None)
    if delta is not None:
        metrics.record_engine(delta, self.vllm_config.model_config.served_model_name, engine_idx)
