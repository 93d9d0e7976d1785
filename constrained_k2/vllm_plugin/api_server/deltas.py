"""Converts the parser's events to vLLM's deltas."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from vllm.entrypoints.generate.base.protocol import DeltaFunctionCall, DeltaToolCall

from constrained_k2.parsing import events as ev
from constrained_k2.request.spec import ToolCall
from constrained_k2.vllm_plugin.shared.log import logger, warn


def report_recoveries(events: Iterable[ev.Event]) -> None:
    """Log what had to be recovered, so that an operator sees why calls go wrong elsewhere."""
    names: dict[int, str] = {}
    for event in events:
        match event:
            case ev.CallStarted(position, name):
                names[position] = name
            case ev.UndeclaredCall(position):
                logger.info("constrained_k2: a call of %.80r, which the request does not declare", names[position])
            case ev.CallDeclined(text):
                warn("a call was declined after this part of its header, or repeated", text)
            case ev.RecoveryUsed(_, recovery):
                logger.info("constrained_k2: a call was read with recovery %s", recovery)


def renumbered(events: Iterable[ev.Event], first: int) -> list[ev.Event]:
    """The events with the numbers of calls in the dialog, for their ids, in place of those that the model wrote."""
    return [
        replace(event, index=first + event.position) if isinstance(event, ev.CallStarted) else event for event in events
    ]


def texts_of(events: Sequence[ev.Event]) -> tuple[str, str]:
    """The reasoning and the content in the events. What is not a call is content, so that nothing disappears."""
    reasoning = content = ""
    for event in events:
        if isinstance(event, ev.ContentDelta | ev.MalformedDelta):
            content += event.text
        elif isinstance(event, ev.ReasoningDelta):
            reasoning += event.text
    return reasoning, content


def call_deltas(events: Iterable[ev.Event]) -> list[DeltaToolCall]:
    """The events' calls as the streaming API shows them: at most one delta per call, header before arguments."""
    deltas: dict[int, DeltaToolCall] = {}
    for event in events:
        if isinstance(event, ev.CallStarted):
            call_id = ToolCall(event.name, event.index, "").id
            function = DeltaFunctionCall(name=event.name, arguments="")
            deltas[event.position] = DeltaToolCall(index=event.position, id=call_id, type="function", function=function)
        elif isinstance(event, ev.ArgumentsDelta):
            delta = deltas.get(event.position)
            if delta is None:
                function = DeltaFunctionCall(arguments=event.text)
                deltas[event.position] = DeltaToolCall(index=event.position, function=function)
            else:
                delta.function.arguments += event.text
    return list(deltas.values())
