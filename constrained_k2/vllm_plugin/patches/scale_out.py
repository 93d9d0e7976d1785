"""Requests split over processes: one renders and parses, another one generates (vLLM's ``--enable-scale-out``)."""

from functools import wraps
from inspect import signature
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionNamedToolChoiceParam
from vllm.exceptions import VLLMValidationError

from constrained_k2.errors import MalformedCompletion
from constrained_k2.vllm_plugin.api_server.derendering import follow_rendering
from constrained_k2.vllm_plugin.api_server.request_hook import check_params_in_thread
from constrained_k2.vllm_plugin.patches import wrapper
from constrained_k2.vllm_plugin.patches.answers import CORRECTED, drop_empty_content
from constrained_k2.vllm_plugin.route import parses_with_us


@wrapper
async def serve_tokens(original: Any, self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
    """Check the parameters before the response starts."""
    try:
        await check_params_in_thread(request.sampling_params)
    except ValueError as error:
        raise VLLMValidationError(str(error)) from error
    return await original(self, request, *args, **kwargs)


@wrapper
async def derender_chat(
    original: Any, self: Any, generate_response: Any, chat_request: Any = None, prompt_token_ids: Any = None
) -> Any:
    """Parse a whole answer as the server that rendered it would, and correct its choices."""
    if chat_request is None or not parses_with_us(self.parser):
        return await original(self, generate_response, chat_request, prompt_token_ids)
    state = follow_rendering(chat_request)
    if generate_response.prompt_token_ids is None and prompt_token_ids:
        # vLLM uses these only to decode; the parser needs them to know whether the prompt opened the reasoning.
        generate_response = generate_response.model_copy(update={"prompt_token_ids": prompt_token_ids})
    try:
        choices = await original(self, generate_response, chat_request, prompt_token_ids)
    except MalformedCompletion as error:
        raise VLLMValidationError(str(error), parameter="generate_response") from error
    is_named = isinstance(chat_request.tool_choice, ChatCompletionNamedToolChoiceParam)
    for choice, cut in zip(choices, state.cuts, strict=True):
        calls = choice.message.tool_calls
        if chat_request.parallel_tool_calls is False:
            choice.message.tool_calls = calls = calls[:1]
        drop_empty_content(chat_request, choice)
        for call in calls:
            call.id = call.function.id or call.id
        if choice.finish_reason in CORRECTED:
            whole = "tool_calls" if calls and not is_named else "stop"
            choice.finish_reason = "length" if cut else whole
    return choices


def derender_chat_stream(original: Any) -> Any:
    """Parse one chunk of a stream as the server that rendered it would."""
    parameters = signature(original)

    @wraps(original)
    async def derendered(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = parameters.bind(self, *args, **kwargs).arguments.get("chat_request")
        if request is not None and parses_with_us(self.parser):
            follow_rendering(request)
        return await original(self, *args, **kwargs)

    return derendered
