"""Runs the doctor's checks, in the order in which an operator wants to know the results."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import NamedTuple

from constrained_k2.evaluation.answer import NoAnswer
from constrained_k2.evaluation.client import NotServed, Refused
from constrained_k2.evaluation.doctor.checks import binding, prompts, service, streams, tag_prompts, written
from constrained_k2.evaluation.doctor.findings import Finding, Result, fault
from constrained_k2.evaluation.doctor.target import Target


class _Check(NamedTuple):
    name: str  # for scripts; stable
    title: str  # for people
    run: Callable[[Target], Awaitable[Finding]]
    is_long: bool = False  # the model writes whole answers for it
    tags: bool | None = None  # only for formats with tags, or without; None for all


CHECKS = (
    _Check("model", "model", service.model),
    _Check("version", "version", service.version),
    _Check("front_end", "front end", service.front_end),
    _Check("flags", "parser and route", service.flags),
    _Check("auto_tool_choice", "tool_choice auto", service.auto_tool_choice),
    _Check("generation_prompt", "generation prompt", prompts.generation_prompt, tags=False),
    _Check("generation_prompt", "generation prompt", tag_prompts.generation_prompt, tags=True),
    _Check("content", "empty, null and listed content", prompts.empty_content, tags=False),
    _Check("tool_results", "tool results", prompts.tool_results, tags=False),
    _Check("ids_kept", "right ids in the history", prompts.ids_kept, tags=False),
    _Check("ids_repaired", "other ids in the history", prompts.ids_repaired, tags=False),
    _Check("history", "the history", tag_prompts.history, tags=True),
    _Check("results_paired", "tool results with other ids", tag_prompts.results_paired, tags=True),
    _Check("special_tokens", "special tokens in text", prompts.special_tokens),
    _Check("declared_tools", "declared tools", prompts.declared_tools, tags=False),
    _Check("end_token", "end of an answer", streams.end_token),
    _Check("strict_refused", "strict that cannot be enforced", service.strict_refused),
    _Check("opt_out", "opting out", service.opt_out),
    _Check("required", "tool_choice required", binding.required, is_long=True),
    _Check("named", "tool_choice of a name", binding.named_function, is_long=True),
    _Check("auto", "calls under auto", binding.auto, is_long=True),
    _Check("none", "tool_choice none", binding.none, is_long=True),
    _Check("single", "parallel_tool_calls false", binding.single, is_long=True),
    _Check("arguments", "arguments of a schema", binding.arguments, is_long=True),
    _Check("special_in_arguments", "special tokens in arguments", binding.special_tokens, is_long=True),
    _Check("dotted_names", "names with dots", binding.dotted_names, is_long=True),
    _Check("call_ids", "ids of calls", binding.call_ids, is_long=True, tags=False),
    _Check("call_ids", "ids of calls", binding.distinct_ids, is_long=True, tags=True),
    _Check("exact_arguments", "calls as written", written.exact_arguments, is_long=True),
    _Check("cut_calls", "calls cut off", streams.cut_calls, is_long=True),
    _Check("stream_agrees", "streamed and whole", streams.stream_agrees, is_long=True),
    _Check("thinking", "thinking on and off", streams.thinking, is_long=True),
)
_SECONDS = 900  # for one check


async def examine(target: Target, *, quick: bool = False, only: Collection[str] = ()) -> AsyncIterator[Result]:
    """Run the checks for the server's format (Kimi K2's if unknown): all, only the short ones, or those named.

    They run one by one: load changes answers.
    """
    for check in CHECKS:
        is_due = check.tags in {None, target.uses_tags} and not (quick and check.is_long)
        if is_due and (not only or check.name in only):
            yield Result(check.name, check.title, await _run(check, target))


async def _run(check: _Check, target: Target) -> Finding:
    try:
        async with asyncio.timeout(_SECONDS):
            return await check.run(target)
    except TimeoutError:
        return fault(f"no answer within {_SECONDS} s", "See the server's log, and whether it is overloaded")
    except NotServed as error:
        return Finding("cannot tell", str(error), "Let the doctor reach the server itself rather than a gateway")
    except Refused as refusal:
        return fault(f"a right request is refused: {refusal}", "See the server's error")
    except NoAnswer as error:
        return fault(f"no usable answer: {error}", "See the server's log")
