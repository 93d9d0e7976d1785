"""Which of vLLM's two ways into sampling a server takes. Operators choose, by flags; requests cannot.

* ``backend``: our matcher is a structured-output grammar inside the engine core (:mod:`.backend`). What a server with
  our tool parser takes by itself, and the only one under speculative decoding on the V1 model runner.
* ``processor``: a logits processor in every worker (:mod:`.logits_processor`), where ``--logits-processors`` names it.
"""

from typing import Any

from constrained_k2.errors import InvalidRequest
from constrained_k2.vllm_plugin.settings import OURS, XARGS_KEY, Route, settings_in

TOOL_PARSER_NAME = "kimi_k2_constrained"

_PROCESSOR_FLAG = f"--logits-processors {OURS}:KimiK2LogitsProcessor"


def route_of(vllm_config: Any) -> Route | None:
    """The route that an engine's configuration asks for; None if it asks for none.

    Args:
        vllm_config: vLLM's ``VllmConfig``: ``additional_config``, ``model_config``, ``speculative_config`` and
            ``use_v2_model_runner`` are read.

    Raises:
        InvalidRequest: The flags contradict each other, or the engine cannot take that route.
    """
    asked = settings_in(vllm_config).route
    place = f"additional_config.{XARGS_KEY}.route"
    model = vllm_config.model_config
    has_processor = is_among(model.logits_processors)
    if asked == "backend" and has_processor:
        raise InvalidRequest("the server runs our logits processor too", place, f"Leave out {_PROCESSOR_FLAG}")
    if asked == "processor" and not has_processor:
        raise InvalidRequest("the server does not run our logits processor", place, f"Add {_PROCESSOR_FLAG}")
    route: Route | None = "processor" if has_processor else asked
    if route == "processor" and vllm_config.speculative_config is not None and not vllm_config.use_v2_model_runner:
        raise InvalidRequest(
            "vLLM's V1 model runner takes no logits processors under speculative decoding",
            "--logits-processors",
            f"Leave out {_PROCESSOR_FLAG}: with --tool-call-parser {TOOL_PARSER_NAME} alone the engine core constrains",
        )
    if route == "backend" and (model.skip_tokenizer_init or model.is_diffusion or model.runner_type != "generate"):
        raise InvalidRequest(
            "the engine has no structured outputs", place, "Serve a generative model, with its tokenizer"
        )
    return route


def choose_backend(args: Any) -> None:
    """Write the backend route into a server's arguments where our tool parser is chosen and no route is.

    It goes where every process of the server reads it, the engine cores included: those never learn of tool parsers.

    Args:
        args: The parsed command line of ``vllm serve``; its ``additional_config`` is replaced.
    """
    additional = getattr(args, "additional_config", None) or {}
    if getattr(args, "tool_call_parser", None) != TOOL_PARSER_NAME or not isinstance(additional, dict):
        return
    ours = additional.get(XARGS_KEY, {})
    if isinstance(ours, dict) and "route" not in ours and not is_among(getattr(args, "logits_processors", None)):
        args.additional_config = additional | {XARGS_KEY: ours | {"route": "backend"}}


def parses_with_us(parser: Any) -> bool:
    """Whether a ``Parser`` that vLLM composed is made with our tool parser.

    Args:
        parser: Its class; None where no parser is chosen.
    """
    return getattr(getattr(parser, "tool_parser_cls", None), "name", None) == TOOL_PARSER_NAME


def is_among(processors: Any) -> bool:
    """Whether our logits processor is one of vLLM's ``logits_processors``, classes or dotted names."""
    names = (entry if isinstance(entry, str) else entry.__module__ for entry in processors or ())
    return any(name.startswith(OURS) for name in names)
