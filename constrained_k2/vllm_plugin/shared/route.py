"""The route of a server: the process that computes masks. Operators choose it by flags.

* ``structured_output``: as a structured-output grammar inside the engine core, overlapped with the forward pass. The
  default with our tool parser, and the only route under speculative decoding on the V1 model runner.
* ``logits_processor``: in every worker, where ``--logits-processors`` names our class.
"""

from typing import Any

from constrained_k2.errors import InvalidRequest
from constrained_k2.vllm_plugin.shared.flags import (
    PACKAGE,
    TOOL_PARSER_NAME,
    XARGS_KEY,
    has_our_logits_processor,
)
from constrained_k2.vllm_plugin.shared.settings import Route, settings_in

PROCESSOR_FLAG = "--logits-processors"
PARSER_FLAG = "--tool-call-parser"
STRICT_LEVEL_FLAG = "--tool-strict-level parameter"
"""With this flag vLLM's front ends send a structural tag, schemas included, with requests that may call tools."""

_OUR_PROCESSOR = f"{PROCESSOR_FLAG} {PACKAGE}:KimiK2LogitsProcessor"


def route_of(vllm_config: Any) -> Route | None:
    """The route that an engine's configuration asks for; None if it asks for none."""
    asked = settings_in(vllm_config).route
    location = f"additional_config.{XARGS_KEY}.route"
    model = vllm_config.model_config
    has_processor = has_our_logits_processor(model.logits_processors)
    if asked == "structured_output" and has_processor:
        raise InvalidRequest("the server runs our logits processor too", location, f"Leave out {_OUR_PROCESSOR}")
    if asked == "logits_processor" and not has_processor:
        raise InvalidRequest("the server does not run our logits processor", location, f"Add {_OUR_PROCESSOR}")
    route: Route | None = "logits_processor" if has_processor else asked
    if route == "logits_processor" and vllm_config.speculative_config:
        refuse_v1_speculation(v2=vllm_config.use_v2_model_runner)
    if route == "structured_output" and (model.is_diffusion or model.runner_type != "generate"):
        raise InvalidRequest("the engine has no structured outputs", location, "Serve a generative model")
    return route


def refuse_v1_speculation(*, v2: bool) -> None:
    """Refuse our logits processor beside speculative decoding, unless vLLM's V2 model runner is in use."""
    if not v2:
        raise InvalidRequest(
            "vLLM's V1 model runner takes no logits processors under speculative decoding",
            PROCESSOR_FLAG,
            f"Leave out {_OUR_PROCESSOR}: with --tool-call-parser {TOOL_PARSER_NAME} alone the engine core "
            "constrains. Or use the V2 runner: VLLM_USE_V2_MODEL_RUNNER=1",
        )


def has_rust_front_end(args: Any) -> bool:
    """True for the arguments of a server with vLLM's Rust front end, which only ``vllm serve`` starts."""
    from vllm import envs

    return bool(envs.VLLM_USE_RUST_FRONTEND) and getattr(args, "subparser", None) == "serve"


def refuse_rust_front_end(args: Any) -> None:
    """Refuse our tool parser before vLLM's Rust front end does: that fails much later and names no remedy."""
    if not has_rust_front_end(args):
        return
    flags = f"{PARSER_FLAG} kimi_k2 {STRICT_LEVEL_FLAG}"
    if not has_our_logits_processor(getattr(args, "logits_processors", None)):
        flags += f""" --additional-config '{{"{XARGS_KEY}": {{"route": "structured_output"}}}}'"""
    raise InvalidRequest(
        f"vLLM's Rust front end (VLLM_USE_RUST_FRONTEND) cannot load {args.tool_call_parser}, which is written in "
        "Python",
        PARSER_FLAG,
        f"Use {flags}: the engine core then constrains the requests of this front end. Or unset VLLM_USE_RUST_FRONTEND",
    )


def choose_route(args: Any) -> None:
    """Write the structured-output route into the arguments of a server with our tool parser, if they name no route.

    ``additional_config`` reaches every process of the server; the name of the tool parser does not.
    """
    additional = getattr(args, "additional_config", None) or {}
    ours = additional.get(XARGS_KEY, {}) if isinstance(additional, dict) else None
    processors = getattr(args, "logits_processors", None)
    if isinstance(ours, dict) and "route" not in ours and not has_our_logits_processor(processors):
        args.additional_config = additional | {XARGS_KEY: ours | {"route": "structured_output"}}


def parses_with_us(parser: Any) -> bool:
    """True if a ``Parser`` class that vLLM composed, or None, has our tool parser."""
    return getattr(getattr(parser, "tool_parser_cls", None), "name", None) == TOOL_PARSER_NAME
