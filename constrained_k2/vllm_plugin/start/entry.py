"""Entry patches: the first vLLM function of each kind of process, wrapped to look for our flags.

Nothing else of the package is imported before that.
"""

from typing import Any

from constrained_k2.vllm_plugin.shared.flags import TOOL_PARSER_NAMES, has_our_flags
from constrained_k2.vllm_plugin.start.apply import activate
from constrained_k2.vllm_plugin.start.patch import wrapper

BODY_MIDDLEWARE = "constrained_k2.vllm_plugin.api_server.middleware.BodyMiddleware"

ADMISSION = "_constrained_k2"
"""The attribute of an ``InputProcessor`` of a server that constrains: what admits its requests."""


@wrapper
def from_cli_args(original: Any, cls: Any, args: Any, *more: Any, **kwargs: Any) -> Any:
    """The API server: pass the route to every process, since only this one knows the tool parser's name."""
    if getattr(args, "tool_call_parser", None) in TOOL_PARSER_NAMES:
        from constrained_k2.vllm_plugin.shared.route import choose_route, refuse_rust_front_end

        refuse_rust_front_end(args)
        activate("api_server")
        from constrained_k2.vllm_plugin.shared.server import Server
        from constrained_k2.vllm_plugin.shared.settings import settings_in

        choose_route(args)
        Server.settings = settings_in(args)  # a process that only renders sees them nowhere else
    engine_args = original(cls, args, *more, **kwargs)
    if has_our_flags(engine_args):
        from constrained_k2.vllm_plugin.shared.route import has_rust_front_end
        from constrained_k2.vllm_plugin.start.front_end import report_front_end, report_version

        middleware = getattr(args, "middleware", None)
        if middleware is not None and BODY_MIDDLEWARE not in middleware and not has_rust_front_end(args):
            args.middleware = [*middleware, BODY_MIDDLEWARE]
        report_version()
        report_front_end(args, engine_args)
    return engine_args


@wrapper
def input_processor_init(original: Any, self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
    """The process that admits requests: learn whether, and how, the engine constrains them."""
    if not has_our_flags(vllm_config):
        original(self, vllm_config, *args, **kwargs)
        return
    activate("api_server")
    from constrained_k2.vllm_plugin.api_server.admission import Admission
    from constrained_k2.vllm_plugin.shared.route import route_of
    from constrained_k2.vllm_plugin.shared.server import remember_server, vocabulary_of, vocabulary_of_model

    original(self, vllm_config, *args, **kwargs)
    route = route_of(vllm_config)
    remember_server(vllm_config, route)
    if route is not None:
        model = vllm_config.model_config
        tokenizer = None if model.skip_tokenizer_init else self.get_tokenizer()
        # Raises where the tokenizer is of no known format; vLLM does not start then.
        vocabulary = vocabulary_of_model(model) if tokenizer is None else vocabulary_of(tokenizer)
        setattr(self, ADMISSION, Admission(vocabulary if route == "structured_output" else None))


def structured_output_manager(original: Any) -> Any:
    """The engine core: make our manager of structured outputs."""

    def make(vllm_config: Any) -> Any:
        if not has_our_flags(vllm_config):
            return original(vllm_config)
        activate("engine_core")
        from constrained_k2.vllm_plugin.engine_core.structured_output import ConstrainedOutputManager

        return ConstrainedOutputManager(vllm_config)

    return make


@wrapper
def init_device(original: Any, self: Any) -> Any:
    """A worker, before it loads the model."""
    if has_our_flags(self.vllm_config):
        activate("worker")
    return original(self)
