"""A chat or responses request, lowered into what the logits processor receives."""

from typing import Any

from vllm.parser.utils import count_history_tool_calls

from constrained_k2.errors import InvalidRequest
from constrained_k2.tools import ToolCallSpec
from constrained_k2.vllm_plugin.admission import OFF, XARGS_KEY, admit

PROCESSOR = "constrained_k2.vllm_plugin:KimiK2LogitsProcessor"
"""The processor's name, as ``--logits-processors`` takes it."""

ON = "on"


def lower(request: Any, model_config: Any, *, thinking: bool) -> None:
    """Write the request's constraint into its ``vllm_xargs``, in place. A request without tools is left alone.

    Args:
        request: vLLM's ``ChatCompletionRequest`` or ``ResponsesRequest``.
        model_config: vLLM's ``ModelConfig``.
        thinking: Whether the model may reason when the request does not say.

    Raises:
        ConstrainedK2Error: The request cannot be constrained.
    """
    if not request.tools:
        return
    extra = dict(request.vllm_xargs or {})
    switch = extra.pop(XARGS_KEY, ON)
    if switch not in {ON, OFF}:
        raise InvalidRequest(
            f"is {str(switch)[:40]!r}; beside tools it is {ON!r} or {OFF!r}",
            f"vllm_xargs.{XARGS_KEY}",
            "Send the tools in tools",
        )
    # So that vLLM's text is exactly the text of the tokens, markers included.
    for field in ("skip_special_tokens", "spaces_between_special_tokens"):
        if field in type(request).model_fields:  # a responses request has only the first
            setattr(request, field, False)
    if switch == ON:
        _refuse_conflicts(request)
        _require_processor(model_config)
        spec = ToolCallSpec.from_openai(_body(request), thinking=thinking)
        admit(spec)
        extra[XARGS_KEY] = spec.to_json()
    request.vllm_xargs = extra


def _body(request: Any) -> dict[str, Any]:
    """The fields that make the spec, as plain values. The messages are counted, not copied: they may be lazy."""
    choice = request.tool_choice
    return {
        "tools": [tool.model_dump() for tool in request.tools],
        "tool_choice": choice.model_dump() if hasattr(choice, "model_dump") else choice,
        "parallel_tool_calls": request.parallel_tool_calls,
        "first_index": count_history_tool_calls(request),
        "chat_template_kwargs": request.chat_template_kwargs,
    }


def _refuse_conflicts(request: Any) -> None:
    """Refuse what would forbid tokens that the tool calls need, or would bypass the processor.

    Raises:
        InvalidRequest: The request asks for such a thing.
    """
    for field, allowed in (("use_beam_search", False), ("bad_words", []), ("allowed_token_ids", None)):
        if getattr(request, field, allowed) not in (allowed, None):
            raise InvalidRequest(
                "cannot be combined with constrained tool calls",
                field,
                f'Leave it out, or switch the constraint off with vllm_xargs {{"{XARGS_KEY}": "{OFF}"}}',
            )
    if request.tool_choice != "none" and request.extract_structured_outputs() is not None:
        raise InvalidRequest(
            "a response format cannot be combined with tools that may be called",
            "response_format",
            'Leave it out, or send tool_choice "none"',
        )


def _require_processor(model_config: Any) -> None:
    """Refuse to serve unconstrained what the operator believes to be constrained.

    Raises:
        InvalidRequest: The server runs without the logits processor.
    """
    loaded = getattr(model_config, "logits_processors", None) or []
    names = [entry if isinstance(entry, str) else f"{entry.__module__}:{entry.__qualname__}" for entry in loaded]
    if not any(name.startswith("constrained_k2.vllm_plugin") for name in names):
        raise InvalidRequest(
            "this server parses tool calls with kimi_k2_constrained but does not constrain them",
            "server",
            f"Start it with --logits-processors {PROCESSOR}",
        )
