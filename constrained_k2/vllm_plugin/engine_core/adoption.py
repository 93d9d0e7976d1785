"""Adoption: constrains requests of front ends and parsers other than this package's.

vLLM's Rust front end, its Python front end with its own Kimi tool parsers, Dynamo and gateways describe the calls of a
request by xgrammar's structural tag. The engine core reads the request back from the tag, and the rest from the
prompt's token ids: the index of the first call and whether reasoning is open. The request then carries the constraint
that our tool parser would have written, and is handled like any other.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from constrained_k2.errors import ConstrainedK2Error, InvalidRequest
from constrained_k2.formats.base import ABSENT
from constrained_k2.prompts.declarations import declarations_of
from constrained_k2.request.spec import ToolCallSpec
from constrained_k2.request.structural_tag import read_structural_tag
from constrained_k2.request.tools import DEFAULT_LIMITS, read_tools
from constrained_k2.vllm_plugin.shared.byte_compiler import SLOW_SECONDS, admit_in_engine_core
from constrained_k2.vllm_plugin.shared.constraint import fields_in, finish_reserve_in, tag
from constrained_k2.vllm_plugin.shared.counters import Adopted, Left, engine_counters
from constrained_k2.vllm_plugin.shared.flags import XARGS_KEY
from constrained_k2.vllm_plugin.shared.log import warn, warn_once
from constrained_k2.vllm_plugin.shared.openings import begins_turn, count_calls
from constrained_k2.vllm_plugin.shared.route import STRICT_LEVEL_FLAG
from constrained_k2.vllm_plugin.shared.settings import CONSTRAINT_KEYS, OFF, ON, REPEATED_CALLS_KEY, Route, settings_in
from constrained_k2.vllm_plugin.shared.token_limits import take_thinking_budget, take_token_ids
from constrained_k2.vocabulary.vocabulary import Vocabulary


class Adoption:
    """Reads the constraint of requests that reach the engine core without one."""

    def __init__(self, vllm_config: Any, vocabulary: Vocabulary, route: Route) -> None:
        self._settings = settings_in(vllm_config)
        self._vocabulary = vocabulary
        self._is_tagged_here = route == "structured_output"  # else the workers read the constraint
        self._reasons = bool(vllm_config.structured_outputs_config.reasoning_parser)
        self._declarations = declarations_of(vocabulary)

    def adopt(self, request: Any) -> None:
        """Write the constraint of an ``EngineCoreRequest`` that carries none into it, if it can be read."""
        source = self._source(request)
        if source is None:
            return
        reason: Left = "option"
        try:
            self._refuse_options(request)
            reason = "format"
            body = self._body(request, source)
            reason = "tools"
            self._constrain(request, body)
        except ConstrainedK2Error as error:
            self._leave(request, reason, str(error))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - a panic in Rust would end the thread that takes all requests
            self._leave(request, "error", repr(error))
        else:
            engine_counters.adopted[source] += 1

    def _source(self, request: Any) -> Adopted | None:
        """The source of the request's tools; None if it has none that can be read."""
        asked = request.sampling_params.structured_outputs
        if asked is not None:
            return "tag" if asked.structural_tag is not None else None
        if not self._declares_tools(request.prompt_token_ids):
            return None
        if self._settings.adopt == "prompt":
            return "prompt"
        if _switch(request.sampling_params) != OFF:
            hint = f"Start the server with {STRICT_LEVEL_FLAG}, or with the setting adopt: 'prompt'"
            warn_once("a request that declares tools came without a structural tag and is not constrained", hint)
        return None

    def _declares_tools(self, ids: Sequence[int] | None) -> bool:
        return ids is not None and self._declarations.are_in(ids)

    def _body(self, request: Any, source: Adopted) -> dict[str, Any]:
        """The request as its front end received it. Schemas that a tag leaves out may come from the prompt."""
        ids = request.prompt_token_ids
        if source == "prompt":
            return {"tools": self._declarations.read(ids), "tool_choice": self._declarations.choice(ids)}
        by_name: dict[str, Any] = {}
        if self._settings.adopt == "prompt" and self._declares_tools(ids):
            with suppress(ConstrainedK2Error):  # such as declarations in TypeScript: the tag may have all schemas
                declared = read_tools(self._declarations.read(ids), DEFAULT_LIMITS)
                by_name = {tool.name: {"parameters": tool.parameters, "strict": tool.strict} for tool in declared}
        tag = request.sampling_params.structured_outputs.structural_tag
        return read_structural_tag(tag, self._vocabulary.format, by_name)

    def _constrain(self, request: Any, body: dict[str, Any]) -> None:
        ids, params = request.prompt_token_ids, request.sampling_params
        switch, fields = _switch(params), fields_in(params.extra_args)
        finish_reserve_in(params.extra_args, 0)
        if fields.pop("repeated_calls") == "forbid":
            hint = f"{request.request_id}: other parsers would show the beginning of one"
            warn(f"a request may repeat calls all the same, {REPEATED_CALLS_KEY} is ignored", hint)
        body |= fields | {
            "first_index": count_calls(ids, self._vocabulary),
            "engine": None if switch == ON else switch,
            "undeclared_calls": "nearest",  # vLLM's parsers take the end of a section for a name, or show it
        }
        constraint = ToolCallSpec.from_openai(body, thinking=self._may_think(ids))
        compiled = admit_in_engine_core(constraint, self._settings)
        params = request.sampling_params = take_thinking_budget(params)
        take_token_ids(params)
        kept = {key: value for key, value in params.extra_args.items() if key not in CONSTRAINT_KEYS}
        params.extra_args = kept | {XARGS_KEY: compiled.resolved_spec.to_json()}
        if self._is_tagged_here:
            tag(params, compiled.slow_tools(SLOW_SECONDS))
        else:
            params.structured_outputs = None

    def _refuse_options(self, request: Any) -> None:
        if _switch(request.sampling_params) == OFF:
            raise InvalidRequest("the request switches the constraint off", f"vllm_xargs.{XARGS_KEY}")
        if not request.prompt_token_ids:
            raise InvalidRequest("the prompt has no token ids, so the index of the first call is unknown", "prompt")
        if request.resumable or request.sampling_params.trace_decode_token_ids:
            raise InvalidRequest("resumable and trace_decode_token_ids cannot be combined with tools", "request")
        if not begins_turn(request.prompt_token_ids, self._vocabulary):
            raise InvalidRequest("the prompt ends inside reasoning or a call: it cannot be adopted", "prompt")

    def _may_think(self, ids: Sequence[int]) -> bool:
        """True if the prompt has opened reasoning, or the model may: the server parses it and it is not closed yet."""
        if self._vocabulary.opens_reasoning(ids):
            return True
        markers = self._vocabulary.format
        return self._reasons and markers.think_begin != ABSENT and ids[-1] != markers.think_end

    def _leave(self, request: Any, reason: Left, problem: str) -> None:
        engine_counters.left[reason] += 1
        warn(f"a request is left to vLLM, {reason}", f"{request.request_id}: {problem}")


def _switch(params: Any) -> Any:
    return (params.extra_args or {}).get(XARGS_KEY, ON)
