"""Takes in requests in the engine core: checks or adopts those that our API server has not tagged.

A request that our front end has checked arrives tagged. One with a constraint in ``vllm_xargs`` that is not tagged has
passed no front end of ours: the engine core checks it. All other requests are for :class:`.adoption.Adoption`.
When a request ends, its calls without a constraint are counted.
"""

from copy import copy
from typing import Any

from vllm import SamplingParams

from constrained_k2.errors import ConstrainedK2Error
from constrained_k2.vllm_plugin.engine_core.adoption import Adoption
from constrained_k2.vllm_plugin.engine_core.adoption_log import AdoptionLog
from constrained_k2.vllm_plugin.shared.byte_compiler import (
    ENGINE_CORE,
    SLOW_SECONDS,
    admit_in_engine_core,
    byte_compiler,
)
from constrained_k2.vllm_plugin.shared.constraint import (
    carries_constraint,
    constraint_in,
    finish_reserve_in,
    is_masked,
    is_refused,
    is_tagged,
    refuse,
    tag,
)
from constrained_k2.vllm_plugin.shared.counters import engine_counters
from constrained_k2.vllm_plugin.shared.flags import XARGS_KEY
from constrained_k2.vllm_plugin.shared.log import warn
from constrained_k2.vllm_plugin.shared.openings import count_calls
from constrained_k2.vllm_plugin.shared.settings import OFF, Route, Settings, settings_in
from constrained_k2.vllm_plugin.shared.token_limits import take_thinking_budget, take_token_ids
from constrained_k2.vocabulary.vocabulary import Vocabulary


class Intake:
    """Sees every request of an engine core that constrains, or whose workers do."""

    def __init__(self, vllm_config: Any, vocabulary: Vocabulary, route: Route) -> None:
        self._settings = settings_in(vllm_config)
        self._is_masked_here = route == "structured_output"  # else the workers read the constraint
        self._vocabulary = vocabulary
        self._adoption = None if self._settings.adopt == OFF else Adoption(vllm_config, vocabulary, route)
        self._log = AdoptionLog()
        byte_compiler(self._settings, ENGINE_CORE)  # it takes most of a second, and requests wait behind the first one

    def take(self, request: Any) -> None:
        """Prepare an ``EngineCoreRequest`` for its route: its sampling parameters are replaced where they change."""
        params = request.sampling_params
        if not isinstance(params, SamplingParams):
            return
        if is_tagged(params):
            if not self._is_masked_here:
                request.sampling_params = copy(params)  # n > 1: several requests may share their parameters
                request.sampling_params.structured_outputs = None
        elif carries_constraint(params.extra_args):
            self._take_own(request)
        elif self._adoption is not None:
            self._adoption.adopt(request)
        self._log.add_request(is_constrained=self._is_constrained(request.sampling_params))

    def end(self, request: Any) -> None:
        """Count the calls that a finished request began without a constraint."""
        params = request.sampling_params
        if params is None or self._is_constrained(params):
            return
        if begun := count_calls(request._output_token_ids, self._vocabulary):  # noqa: SLF001 - the public property copies
            engine_counters.unconstrained_calls += begun
            self._log.report()

    def _is_constrained(self, params: SamplingParams) -> bool:
        # Beside structured outputs of vLLM's, the engine core does not read what a request carries.
        if is_tagged(params):
            return not is_refused(params)
        return not self._is_masked_here and carries_constraint(params.extra_args)

    def _take_own(self, request: Any) -> None:
        """Have a constraint in ``vllm_xargs`` checked: here, or in another thread before the request is scheduled."""
        if self._is_masked_here and (self._adoption is None or request.sampling_params.structured_outputs is not None):
            return
        given = request.sampling_params
        params = request.sampling_params = take_thinking_budget(given)
        take_token_ids(params)
        if self._is_masked_here:
            tag(params, None)
        elif given.structured_outputs is not None and _is_free_text(given):
            request.sampling_params = given  # of our own front end too: it leaves vLLM's structured outputs as they are
            return
        elif problem := _problem(params, self._settings):
            engine_counters.ended_early += 1
            warn("a request is refused", f"{request.request_id}: {problem}")
            refuse(params)
            return
        engine_counters.adopted["xargs"] += 1


def check(params: SamplingParams, settings: Settings) -> list[int]:
    """Check a constraint as a front end of ours does, within the engine core's limits on time.

    Where masks are made, the model's grammars are compiled without limits, when their tool is called.

    Returns:
        The tools that are slow to compile, by their positions.

    Raises:
        ConstrainedK2Error: The request cannot be constrained.
    """
    constraint = constraint_in(params.extra_args)
    assert constraint is not None  # only such requests are checked
    finish_reserve_in(params.extra_args, 0)
    checked = admit_in_engine_core(constraint, settings)
    if (resolved := checked.resolved_spec) is not constraint:
        params.extra_args = {**(params.extra_args or {}), XARGS_KEY: resolved.to_json()}
    return checked.slow_tools(SLOW_SECONDS)


def _problem(params: SamplingParams, settings: Settings) -> str | None:
    """The reason why a constraint cannot hold; None if it can."""
    if params.structured_outputs is not None:
        return "structured_outputs: cannot be combined with tools. Leave one of them out"
    try:
        check(params, settings)
    except ConstrainedK2Error as error:
        return str(error)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - a panic in Rust would end the thread that takes all requests
        return repr(error)
    return None


def _is_free_text(params: SamplingParams) -> bool:
    """True if a request's constraint only forbids calls."""
    try:
        constraint = constraint_in(params.extra_args)
    except ConstrainedK2Error:
        return False
    return constraint is not None and not is_masked(constraint)
