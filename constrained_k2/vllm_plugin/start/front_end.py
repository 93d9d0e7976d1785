"""Logs at start the version of vLLM, and the front end, tool parser, route and adoption in force.

A warning names the requests that they leave unconstrained.
"""

from typing import Any

from constrained_k2.vllm_plugin.shared.flags import TOOL_PARSER_NAME, TOOL_PARSER_NAMES, has_our_logits_processor
from constrained_k2.vllm_plugin.shared.log import logger
from constrained_k2.vllm_plugin.shared.route import STRICT_LEVEL_FLAG, has_rust_front_end
from constrained_k2.vllm_plugin.shared.settings import settings_in
from constrained_k2.vllm_plugin.start.apply import vllm_version
from constrained_k2.vllm_plugin.start.versions import standing


def report_version() -> None:
    """Log one line with the version of vLLM, and whether it was tested on such a device."""
    from vllm.platforms import current_platform

    is_cpu, number = current_platform.is_cpu(), vllm_version()
    was_tested, how = standing(number, is_cpu=is_cpu)
    device = "a CPU" if is_cpu else "a GPU"
    (logger.info if was_tested else logger.warning)("constrained_k2: vLLM %s on %s: %s", number, device, how)


def report_front_end(args: Any, engine_args: Any) -> None:
    """Log one line about a server that is started with our flags, from its command line and vLLM's ``EngineArgs``."""
    settings = settings_in(engine_args)
    route = "logits_processor" if has_our_logits_processor(engine_args.logits_processors) else settings.route
    parser = getattr(args, "tool_call_parser", None)
    is_rust = has_rust_front_end(args)
    front_end = "Rust" if is_rust else "Python"
    line = f"front end {front_end}, tool parser {parser or 'none'}, route {route or 'none'}, adopt {settings.adopt}"
    level = getattr(args, "tool_strict_level", None) or "auto"  # vLLM 0.33's default is None: the parser's own
    if problem := _unconstrained(parser, route, settings.adopt, level, is_rust=is_rust):
        logger.warning("constrained_k2: %s: %s", line, problem)
    else:
        logger.info("constrained_k2: %s", line)


def _unconstrained(parser: str | None, route: str | None, adopt: str, strict_level: str, *, is_rust: bool) -> str:
    """The requests of such a server that are not constrained, and the remedy; empty if there are none."""
    if route is None:
        return f"no request is constrained. Set a route, or --tool-call-parser {TOOL_PARSER_NAME}"
    if parser is None or parser in TOOL_PARSER_NAMES:
        return ""
    if adopt == "off":
        return "requests of this front end are not constrained. Leave out adopt: 'off'"
    if parser == "kimi_k3" and adopt == "tag" and not is_rust:
        return (
            "the structural tags of this parser spell arguments out without their schemas, and are left to vLLM. "
            f"Add the setting adopt: 'prompt', or use --tool-call-parser {TOOL_PARSER_NAME}"
        )
    if adopt == "tag" and strict_level == "auto":
        return (
            "requests with tool_choice auto and no strict tool come without a structural tag and are not constrained. "
            f"Add {STRICT_LEVEL_FLAG}, or the setting adopt: 'prompt'"
        )
    if adopt == "tag" and strict_level == "function":
        return f"the tag of a tool that is not strict leaves its arguments free. Use {STRICT_LEVEL_FLAG}"
    return ""
