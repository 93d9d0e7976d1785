"""Parses answers inside vLLM by token id, streamed or whole."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from pydantic import PrivateAttr
from vllm.entrypoints.generate.base.protocol import (
    DeltaMessage,
    ExtractedToolCallInformation,
    FunctionCall,
)
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.exceptions import VLLMValidationError
from vllm.tool_parsers.abstract_tool_parser import ToolParser

from constrained_k2.errors import ConstrainedK2Error
from constrained_k2.parsing import Completion, ToolCallParser
from constrained_k2.parsing import events as ev
from constrained_k2.vllm_plugin.api_server.deltas import call_deltas, renumbered, report_recoveries, texts_of
from constrained_k2.vllm_plugin.api_server.functions import declared_in, functions_of
from constrained_k2.vllm_plugin.api_server.request_hook import constrain_request, may_think, show_special_tokens
from constrained_k2.vllm_plugin.api_server.request_state import Ending, RequestState, calls_before
from constrained_k2.vllm_plugin.api_server.stop_strings import TextBudget, TextTokens
from constrained_k2.vllm_plugin.constraint import carries_constraint, constraint_in
from constrained_k2.vllm_plugin.flags import TOOL_PARSER_NAME
from constrained_k2.vllm_plugin.vocabularies import vocabulary_of
from constrained_k2.vocabulary.vocabulary import Vocabulary

_PLAIN = frozenset((ev.ContentDelta, ev.ReasoningDelta, ev.ArgumentsDelta))
"""The events that carry text alone: nothing in them is renumbered, logged or cut."""

_PROMPT_END = 16  # tokens; more than vLLM's detokenizers look back


class LastDelta(DeltaMessage):
    """The last delta of a stream in which a call was begun, and cut off or declined."""

    _ending: Ending = PrivateAttr(default=Ending())

    @property
    def ending(self) -> Ending:
        """The end of the choice."""
        return self._ending


class KimiK2ToolParser(ToolParser):
    """The class behind ``--tool-call-parser``; :class:`ParsingByTokenId` does the work."""

    name = TOOL_PARSER_NAME
    supports_required_and_named = False

    def __init__(self, tokenizer: Any, tools: list[Any] | None = None) -> None:
        super().__init__(tokenizer, tools)
        self.vocabulary = vocabulary_of(tokenizer)

    def adjust_request(self, request: Any) -> Any:
        """Leave the request to :meth:`ParsingByTokenId.adjust_request`."""
        return request

    def extract_tool_calls(self, model_output: str, request: Any) -> ExtractedToolCallInformation:  # noqa: ARG002
        """No calls: vLLM calls this only without tools."""
        return ExtractedToolCallInformation(tools_called=False, tool_calls=[], content=model_output)

    def extract_tool_calls_streaming(
        self,
        previous_text: str,  # noqa: ARG002 - vLLM's signature
        current_text: str,  # noqa: ARG002
        delta_text: str,
        *_: Any,
    ) -> DeltaMessage | None:
        """The text: vLLM calls this only without tools."""
        return DeltaMessage(content=delta_text) if delta_text else None


class ParsingByTokenId:
    """Mixed into the ``Parser`` that vLLM composes: one per completion, or per request for its adjustment."""

    always_adjust_request = True  # also with tool_choice "none", under which markers are forbidden

    def __init__(self, tokenizer: Any, tools: list[Any] | None = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(tokenizer, tools, *args, **kwargs)  # type: ignore[call-arg]
        self.vocabulary: Vocabulary = self.tool_parser.vocabulary  # type: ignore[attr-defined]
        self._in_reasoning = False
        self._prompt_end: Sequence[int] = ()
        self._functions: list[Any] | None = None
        self._unseen = Counter[int]()  # special tokens to hide whose text has not come yet
        self._held = ""  # the beginning of such a text
        self._stream: ToolCallParser | None = None
        self._first_number: int | None = None  # of the turn's first call in the dialog, if the model does not write it
        self._history_calls: int | None = None  # where the request does not tell
        self._dropped: frozenset[int] = frozenset()  # special tokens that the client did not ask for
        self._budget: TextBudget | None = None
        self._buffered: list[ev.Event] = []  # of the current call, where only whole calls are shown
        self._shown = 0
        self._whole_calls_only = self._hides_cuts = False
        self._ending = Ending()

    def adjust_request(self, request: Any) -> Any:
        """Constrain the request; vLLM answers the error raised here with HTTP 400."""
        state = RequestState.of(request)
        state.hides_special_tokens = state.hides_special_tokens or _hides_special_tokens(request)
        if self.vocabulary.format.argument_encoding == "xtml":
            show_special_tokens(request)
        if self.reasoning_parser is not None:  # type: ignore[attr-defined]
            request = self.reasoning_parser.adjust_request(request)  # type: ignore[attr-defined]
        try:
            constrain_request(request, thinking=may_think(self, self.model_tokenizer))  # type: ignore[attr-defined]
        except ConstrainedK2Error as error:
            raise VLLMValidationError(str(error), parameter=error.location or None) from error
        return request

    def set_prompt_token_ids(self, prompt_token_ids: Sequence[int]) -> None:
        """Remember the end of the prompt, and whether it opened the reasoning."""
        self._prompt_end = prompt_token_ids[-_PROMPT_END:]
        self._in_reasoning = self.vocabulary.opens_reasoning(self._prompt_end)

    def set_history_tool_call_count(self, count: int) -> None:
        """Number the calls of a request without messages: vLLM 0.33's ``output_mode: "derender"``, and nothing else."""
        self._history_calls = count

    def parse(
        self,
        model_output: str,
        request: Any,
        enable_auto_tools: bool = False,  # noqa: FBT001, FBT002 - vLLM's signature
        model_output_token_ids: Sequence[int] = (),
    ) -> tuple[str | None, str | None, list[FunctionCall] | None]:
        """Read a whole completion: ``(reasoning, content, tool calls)``."""
        if not self._reads(request):
            text = self._as_asked(model_output, model_output_token_ids, request)
            RequestState.of(request).endings.append(Ending())
            return super().parse(  # type: ignore[misc, no-any-return]
                text, request, enable_auto_tools, model_output_token_ids
            )
        events = self._read(model_output_token_ids, model_output, request, finished=True)
        RequestState.of(request).endings.append(self._ending)
        reasoning, content = texts_of(events)
        calls = [
            FunctionCall(id=call.id, name=call.name, arguments=call.arguments)
            for call in Completion.from_events(events).tool_calls
        ]
        return reasoning or None, content or None, calls or None

    def parse_delta(
        self,
        delta_text: str,
        delta_token_ids: list[int],
        request: Any,
        prompt_token_ids: list[int] | None = None,
        *,
        finished: bool,
    ) -> DeltaMessage | None:
        """Read the next tokens of a stream; None if they add nothing to show."""
        if self._stream is None and prompt_token_ids:
            self.set_prompt_token_ids(prompt_token_ids)
        if not self._reads(request):
            text = self._as_asked(delta_text, delta_token_ids, request, finished=finished)
            return super().parse_delta(  # type: ignore[misc]
                text, delta_token_ids, request, prompt_token_ids, finished=finished
            )
        events = self._read(delta_token_ids, delta_text, request, finished=finished)
        is_last = finished and self._ending != Ending()
        if not (events or is_last):
            return None
        reasoning, content = texts_of(events)
        calls = call_deltas(self._whole_calls(events) if self._whole_calls_only else events)
        if not request.include_reasoning:
            reasoning = ""
        if not (reasoning or content or calls or is_last):
            return None
        delta = (LastDelta if is_last else DeltaMessage)(
            reasoning=reasoning or None, content=content or None, tool_calls=calls
        )
        if isinstance(delta, LastDelta):
            delta._ending = self._ending  # noqa: SLF001 - a field would be sent
        return delta

    def _reads(self, request: Any) -> bool:
        """True if this class reads the answer; else it is free text without calls, and vLLM's parsers read it.

        Some of those take an answer without reasoning for reasoning, so answers in a form are read here. They tell tags
        from text that spells them only by their spelling, so answers in tags are.
        """
        if self.vocabulary.format.argument_encoding == "xtml" or self._functions_of(request):
            return True
        state = RequestState.attached_to(request)
        return state is not None and state.has_form

    def _functions_of(self, request: Any) -> list[Any]:
        """The request's functions, which stay the same for all of a stream."""
        if self._functions is None:
            self._functions = functions_of(request)
        return self._functions

    def _as_asked(self, text: str, token_ids: Sequence[int], request: Any, *, finished: bool = True) -> str:
        """The text of tokens without the special ones, unless the client asked for them.

        vLLM shows them for its reasoning parser, and those that the tokenizer's files call added but not special. In a
        stream their text may come later than they, and in parts: vLLM holds back what may become a stop string.
        """
        if not _hides_special_tokens(request):
            return text
        hidden = _hidden(self.vocabulary)
        self._unseen.update(filter(hidden.__contains__, token_ids))
        text, self._held = self._held + text, ""
        for token, count in self._unseen.items():
            special = hidden[token]
            seen = min(count, text.count(special))
            text = text.replace(special, "", seen)
            self._unseen[token] -= seen
            if seen < count and not finished:
                begun = next((n for n in range(len(special) - 1, 0, -1) if text.endswith(special[:n])), 0)
                text, self._held = text[: len(text) - begun], text[len(text) - begun :] + self._held
        return text

    def _read(self, token_ids: Sequence[int], text: str, request: Any, *, finished: bool) -> list[ev.Event]:
        """The events of the next tokens, as far as stop strings let them be seen."""
        if self._stream is None:
            self._stream = self._begun(token_ids, text, request)
        if self._budget is not None:
            token_ids = self._budget.take(token_ids, text, finished=finished)
        if self._dropped:
            token_ids = [token_id for token_id in token_ids if token_id not in self._dropped]
        events = self._stream.feed(token_ids)
        if finished:
            events += self._stream.finish()
        if _PLAIN.issuperset(map(type, events)):  # as most tokens' events are
            return events
        report_recoveries(events)
        if self._first_number is not None:
            events = renumbered(events, self._first_number)
        for event in events:
            if isinstance(event, ev.CallCut | ev.HeaderCut) and not self._hides_cuts:
                self._ending = self._ending._replace(is_cut=True)
            elif isinstance(event, ev.CallDeclined):
                begin = self.vocabulary.format.header_begin
                name = "" if begin.startswith(event.text) else event.text.removeprefix(begin)
                self._ending = Ending(declined=name)  # it was not cut off
        return events

    def _begun(self, token_ids: Sequence[int], text: str, request: Any) -> ToolCallParser:
        """The parser of an answer that begins with these tokens, after all else is set up for it."""
        constrained = carries_constraint(request.vllm_xargs)
        functions = self._functions_of(request)
        stream = ToolCallParser(
            self.vocabulary,
            in_reasoning=self._in_reasoning,
            level="strict" if constrained else "tolerant",
            tools=declared_in(functions),
            calls=bool(functions) and request.tool_choice != "none",
        )
        if not self.vocabulary.format.counts_dialog:
            self._first_number = calls_before(request) if self._history_calls is None else self._history_calls
        if not functions and _hides_special_tokens(request):
            self._dropped = frozenset(_hidden(self.vocabulary))
        stop = getattr(request, "stop", None)
        if stop and not getattr(request, "include_stop_str_in_output", False):
            tokens = TextTokens(self.vocabulary, self._prompt_end) if constrained else None
            self._budget = TextBudget(self.vocabulary, [stop] if isinstance(stop, str) else stop, tokens)
        elif self._history_calls is not None and self.vocabulary.decode(token_ids).startswith(text):
            # Such a request does not show its stop strings: the text may end before any token.
            self._budget = TextBudget(self.vocabulary, [""], None)
        self._hides_cuts = _hides_cuts(request)
        self._whole_calls_only = self._hides_cuts or (constrained and _forbids_repeats(request))
        return stream

    def _whole_calls(self, events: Iterable[ev.Event]) -> list[ev.Event]:
        """The events of the calls that are whole now, numbered without those that were cut."""
        shown: list[ev.Event] = []
        for event in events:
            match event:
                case ev.CallStarted():
                    self._buffered = [replace(event, position=self._shown)]
                case ev.ArgumentsDelta():
                    self._buffered.append(replace(event, position=self._shown))
                case ev.CallFinished():
                    shown += self._buffered
                    self._shown += 1
        return shown


def _hides_special_tokens(request: Any) -> bool:
    """True if the client did not ask to see them. A request that this process only derenders says so itself.

    None is vLLM 0.33's default, which means that they are hidden.
    """
    state = RequestState.attached_to(request)
    known = None if state is None else state.hides_special_tokens
    return request.skip_special_tokens is not False if known is None else known


@lru_cache(maxsize=8)
def _hidden(vocabulary: Vocabulary) -> dict[int, str]:
    """The special tokens that no parser needs in a text without calls."""
    markers = vocabulary.format
    read = {markers.think_begin, markers.think_end}
    if markers.argument_encoding == "xtml":  # every block is a tag
        read |= markers.argument_markers | {*markers.stop_ids}
    return {token: text for text, token in vocabulary.special_tokens.items() if token not in read}


def _forbids_repeats(request: Any) -> bool:
    """True if a call that was begun may turn out to repeat another one, and is then not made."""
    state = RequestState.attached_to(request)
    spec = state.compiled.spec if state is not None and state.compiled else constraint_in(request.vllm_xargs)
    return spec is not None and spec.repeated_calls == "forbid"


def _hides_cuts(request: Any) -> bool:
    """True if an answer shows calls once whole and does not say that one was cut off.

    A stop may cut one, and responses streams complete all that have begun.
    """
    return isinstance(request, ResponsesRequest) or any(
        getattr(request, field, None) for field in ("stop", "stop_token_ids")
    )
