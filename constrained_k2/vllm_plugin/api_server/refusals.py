"""The table of request fields that are refused, ignored or limited; reports refused requests.

The code that refuses a field reads its row, and ``docs/reference/reasons.md`` is written from the table. Each refusal
is one log line and one count, whose labels are from fixed sets.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

from constrained_k2.errors import ConstrainedK2Error, InvalidRequest, SchemaTooCostly, UnsupportedSchema
from constrained_k2.schema.keywords import KEYWORDS
from constrained_k2.vllm_plugin.api_server import metrics
from constrained_k2.vllm_plugin.shared.flags import XARGS_KEY
from constrained_k2.vllm_plugin.shared.log import warn
from constrained_k2.vllm_plugin.shared.settings import OFF

FIELDS = frozenset({"tools", "tool_choice", "parallel_tool_calls", "messages", "thinking", "chat_template_kwargs",
                    "engine", "first_index", "vllm_xargs", "server", "body", "use_beam_search",
                    "structured_outputs", "response_format", "text"})  # fmt: skip
"""The first words of locations in a request that have a label of their own."""

OTHER = "other"


@contextmanager
def refusals_noted() -> Iterator[None]:
    """Report an error of ours that leaves this block, or the decorated function, once."""
    try:
        yield
    except ConstrainedK2Error as error:
        if not getattr(error, "is_noted", False):
            error.is_noted = True  # type: ignore[attr-defined] # an error may pass several such blocks
            reason, detail = classified(error)
            metrics.record_refusal(reason, detail)
            warn(f"refused, {reason} {detail}", str(error))
        raise


def classified(error: ConstrainedK2Error) -> tuple[str, str]:
    """The metric labels of an error, from fixed sets: its kind, and the budget, schema keyword or request field."""
    match error:
        case SchemaTooCostly():
            return "too_costly", error.budget or OTHER  # names in our own code
        case UnsupportedSchema():
            return "unsupported_schema", error.keyword if error.keyword in KEYWORDS else OTHER
        case InvalidRequest():
            begin = re.match(r"\w*", error.location)
            return "invalid_request", begin[0] if begin and begin[0] in FIELDS else OTHER
    return OTHER, OTHER


Endpoint = Literal["chat", "responses", "messages", "completions", "python"]
Outcome = Literal["refused", "refused by vLLM", "ignored", "limited"]

_OFF = f'vllm_xargs {{"{XARGS_KEY}": "{OFF}"}}'
_LEAVE_OUT = f'Leave it out, send tool_choice "none", or switch off with {_OFF}'
_CALLABLE = "callable tools"
_LEFT = "if it forbids every token that the constraint allows, it is ignored for that token, and a metric counts it"
_EVERYWHERE: tuple[Endpoint, ...] = ("chat", "responses", "messages", "completions")


class Reason(NamedTuple):
    """One row: what happens to a field beside something else, and why."""

    field: str  # its path in the request, as errors name it
    beside: str
    outcome: Outcome
    endpoints: tuple[Endpoint, ...]  # those whose requests can have it
    why: str
    remedy: str = _LEAVE_OUT  # for the client, if the field is refused
    problem: str = ""  # for the client, if the combination is not the problem


REASONS = (
    Reason("use_beam_search", "constrained tool calls", "refused", ("chat", "completions"),
           "vLLM's beam search sends separate requests, without the constraint",
           f"Leave it out, or switch off with {_OFF}"),
    Reason("structured_outputs", "a constrained request", "refused", ("completions",),
           "the response format belongs inside vllm_xargs.constrained_k2",
           "Move it there, also if it is called response_format"),
    Reason("structured_outputs.structural_tag", _CALLABLE, "refused", ("chat", "responses"),
           "the tools already give the turn a grammar"),
    Reason("response_format.type", "structural_tag and " + _CALLABLE, "refused", ("chat",),
           "the tools already give the turn a grammar"),
    *(Reason(f"structured_outputs.{option}", _CALLABLE, "refused", ("chat", "responses"),
             "only vLLM's own backends have this option")
      for option in ("whitespace_pattern", "disable_any_whitespace", "disable_additional_properties")),
    Reason("trace_decode_token_ids", "a constrained request", "refused", ("python",),
           "it forces tokens that the constraint forbids", "Leave it out"),
    Reason("resumable", "a constrained request", "refused", ("python",),
           "the prompt of an input stream is not complete when the answer begins", "Send the input whole"),
    Reason("tool_choice", "a tool that is not in the prompt", "refused", ("responses",),
           "tool_choice can name only a function or a custom tool",
           "Name a function of tools, or use 'auto'"),
    Reason("tool_choice.allowed_tools", "another tool parser", "refused", ("chat",),
           "only the parser kimi_constrained masks the other tools", "Use 'auto', or send fewer tools"),
    Reason("messages[…].tools", "Kimi K3's prompts", "refused", ("chat",),
           "vLLM does not write a message's tools into these prompts",
           "Declare them in the request's tools"),
    Reason("messages[…].tool_call_id", "Kimi K3's prompts: a missing id, if no call precedes the result", "refused",
           ("chat",), "without an id, nothing says which call the result belongs to",
           "Send the call before the result, and its id", "missing, and no call before the result tells its function"),
    Reason("tools[…].format", "another tool parser", "refused", ("chat", "responses"),
           "only the parser kimi_constrained enforces the grammar of a custom tool", "Leave the format out"),
    Reason("tools[…].custom", "chat completions", "limited", ("chat",),
           "vLLM knows only functions: the client gets a function call whose argument input is the text"),
    Reason("tools[…].input_schema", "a tool without one", "refused by vLLM", ("messages",),
           "vLLM accepts only tools with a schema"),
    Reason("tools", "a type other than function, custom or namespace", "ignored", ("responses",),
           "vLLM does not show the model such a tool; the log names the type"),
    Reason("bad_words", _CALLABLE, "limited", ("chat", "completions"), _LEFT),
    Reason("allowed_token_ids", _CALLABLE, "limited", ("chat", "completions"), _LEFT),
    Reason("stop", "a required call", "ignored", _EVERYWHERE[:3],
           "there is no text to stop in"),
    Reason("stop", _CALLABLE, "limited", _EVERYWHERE,
           "it matches in text only, not in reasoning or calls"),
    Reason("stop_token_ids", "a required call", "ignored", ("chat", "responses"),
           "there is no text to stop in"),
    Reason("stop_token_ids", _CALLABLE, "limited", ("chat", "responses", "completions"),
           "such a token inside a call ends the answer, and the call is dropped"),
    Reason("tools[…].strict", "absent or false, and a schema without a grammar", "limited", _EVERYWHERE,
           "any JSON object is allowed; the log and diagnostics name the tool, and metrics count the request"),
    Reason("tools[…].name", "other tools of the same name", "limited", _EVERYWHERE,
           "equal tools count as one; if they differ, arguments satisfy at least one of their schemas"),
)  # fmt: skip
"""The table."""

_REFUSED = {reason.field: reason for reason in REASONS if reason.outcome == "refused"}


def refusal(field: str, location: str | None = None) -> InvalidRequest:
    """The error for a field that the table has as refused; ``location`` is its path, if a row has it of several."""
    row = _REFUSED[field]
    problem = row.problem or f"cannot be combined with {row.beside}: {row.why}"
    return InvalidRequest(problem, location or field, row.remedy)
