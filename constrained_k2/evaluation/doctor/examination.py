"""All the checks, in the order in which a person wants to know."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass

from constrained_k2.evaluation.chat_answer import Unusable
from constrained_k2.evaluation.doctor.checks import (
    admission,
    binding,
    cut_calls,
    declared,
    exact_arguments,
    history,
    injection,
    rendering,
    service,
    streaming,
    thinking,
)
from constrained_k2.evaluation.doctor.connection import NotServed, Refused
from constrained_k2.evaluation.doctor.finding import Finding, Result
from constrained_k2.evaluation.doctor.target import Target


@dataclass(frozen=True, slots=True)
class Check:
    """One question.

    Attributes:
        name: For scripts; stable.
        title: For people.
        ask: Asks it.
        writes: Whether the model writes whole answers for it.
    """

    name: str
    title: str
    ask: Callable[[Target], Awaitable[Finding]]
    writes: bool = False


CHECKS = (
    Check("model", "model", service.model),
    Check("version", "version", service.version),
    Check("flags", "parser and route", service.flags),
    Check("auto_tool_choice", "tool_choice auto", service.auto_tool_choice),
    Check("generation_prompt", "generation prompt", rendering.generation_prompt),
    Check("content", "empty, null and listed content", rendering.empty_content),
    Check("tool_results", "tool results", rendering.tool_results),
    Check("ids_kept", "right ids in the history", history.ids_kept),
    Check("ids_repaired", "other ids in the history", history.ids_repaired),
    Check("special_tokens", "special tokens in text", injection.special_tokens),
    Check("declared_tools", "declared tools", declared.declared_tools),
    Check("strict_refused", "strict that cannot be kept", admission.strict_refused),
    Check("opt_out", "opting out", admission.opt_out),
    Check("required", "tool_choice required", binding.required, writes=True),
    Check("named", "tool_choice of a name", binding.named, writes=True),
    Check("none", "tool_choice none", binding.none, writes=True),
    Check("single", "parallel_tool_calls false", binding.single, writes=True),
    Check("arguments", "arguments of a schema", binding.arguments, writes=True),
    Check("call_ids", "ids of calls", binding.call_ids, writes=True),
    Check("exact_arguments", "calls as written", exact_arguments.exact_arguments, writes=True),
    Check("cut_calls", "calls cut off", cut_calls.cut_calls, writes=True),
    Check("stream_agrees", "streamed and whole", streaming.stream_agrees, writes=True),
    Check("thinking", "thinking on and off", thinking.thinking, writes=True),
)
"""Every check."""

_SECONDS = 900
"""The longest that one check may take."""


async def examine(target: Target, *, quick: bool = False, only: Collection[str] = ()) -> AsyncIterator[Result]:
    """Ask every question, one after the other: a server under load answers otherwise than an idle one.

    Args:
        target: The server.
        quick: Whether to leave out the checks for which the model writes whole answers.
        only: The names of the checks to make; all of them if there are none.
    """
    for check in CHECKS:
        if not (quick and check.writes) and (not only or check.name in only):
            yield Result(check.name, check.title, await _ask(check, target))


async def _ask(check: Check, target: Target) -> Finding:
    """The finding of one check; an answer that is none is a finding too."""
    try:
        async with asyncio.timeout(_SECONDS):
            return await check.ask(target)
    except TimeoutError:
        return Finding("fault", f"no answer within {_SECONDS} s", "See the server's log, and whether it is overloaded")
    except NotServed as error:
        return Finding("cannot tell", str(error), "Let the doctor reach the whole server, not a gateway in front of it")
    except Refused as refusal:
        return Finding("fault", f"a request that is right is refused: {refusal}", "See what the server says of it")
    except Unusable as error:
        return Finding("fault", f"no usable answer: {error}", "See the server's log")
