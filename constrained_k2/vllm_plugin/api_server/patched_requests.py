"""Patches of requests: repair and precompilation before the chat template, and admission."""

from functools import wraps
from inspect import signature
from typing import Any

from constrained_k2.vllm_plugin.api_server import repair, request_hook
from constrained_k2.vllm_plugin.api_server.functions import set_default_choice
from constrained_k2.vllm_plugin.api_server.request_state import RequestState
from constrained_k2.vllm_plugin.shared.route import parses_with_us
from constrained_k2.vllm_plugin.shared.vocabularies import vocabulary_of
from constrained_k2.vllm_plugin.start.entry import ADMISSION
from constrained_k2.vllm_plugin.start.patch import wrapper


def preprocess_chat(original: Any) -> Any:
    """Repair messages and tools, and compile the tools, where our tool parser is chosen."""
    parameters = signature(original)

    @wraps(original)
    async def prepared(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not parses_with_us(self.parser):
            return await original(self, *args, **kwargs)
        call = parameters.bind(self, *args, **kwargs)
        request = call.arguments["request"]
        set_default_choice(request)
        tokenizer = self.renderer.get_tokenizer()
        if vocabulary_of(tokenizer).format.argument_encoding == "xtml":
            state = repair.prepare_tags(call.arguments)
        else:
            template = repair.template_of(call.arguments, tokenizer, self.model_config)
            state = repair.prepare(call.arguments, repair.specials_of(tokenizer), template)
        with state.rendering(request):
            thinking = request_hook.may_think(self.parser, tokenizer)
            await request_hook.precompile(request, state, thinking=thinking)
            return await original(*call.args, **call.kwargs)

    return prepared


@wrapper
def postprocess_messages(original: Any, messages: list[Any]) -> None:
    """Leave arguments as they were written, where the request's state says so."""
    state = RequestState.current()
    if state is None or not state.exact_arguments:
        original(messages)
        return
    with repair.restored_arguments(messages):
        original(messages)


def process_inputs(original: Any) -> Any:
    """Check a request, take over its limits on tokens, and tag it for the engine core."""
    parameters = signature(original)

    @wraps(original)
    def admitted(self: Any, *args: Any, **kwargs: Any) -> Any:
        admission = getattr(self, ADMISSION, None)
        if admission is None:
            return original(self, *args, **kwargs)
        call = parameters.bind(self, *args, **kwargs)
        compiled = admission.check(call.arguments)
        request = original(*call.args, **call.kwargs)
        if compiled is not None:
            admission.constrain(request, compiled)
        return request

    return admitted
