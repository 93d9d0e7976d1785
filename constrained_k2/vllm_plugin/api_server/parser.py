"""Parses answers inside vLLM by token id, streamed or whole."""

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from pydantic import Field
from vllm.entrypoints.generate.base.protocol import DeltaMessage, ExtractedToolCallInformation, FunctionCall
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.exceptions import VLLMValidationError
from vllm.tool_parsers.abstract_tool_parser import ToolParser

from constrained_k2.errors import ConstrainedK2Error
from constrained_k2.parsing import Completion, ToolCallParser
from constrained_k2.parsing import events as ev
from constrained_k2.parsing.uncalled import UncalledFilter
from constrained_k2.vllm_plugin.api_server.deltas import call_deltas, renumbered, report_recoveries, texts_of
from constrained_k2.vllm_plugin.api_server.functions import declared_in, field_of, functions_of
from constrained_k2.vllm_plugin.api_server.request_hook import constrain_request, may_think, show_special_tokens
from constrained_k2.vllm_plugin.api_server.request_state import Ending, RequestState, calls_before
from constrained_k2.vllm_plugin.api_server.stop_strings import TextBudget, TextTokens
from constrained_k2.vllm_plugin.shared.constraint import carries_constraint, constraint_in
from constrained_k2.vllm_plugin.shared.flags import TOOL_PARSER_NAME
from constrained_k2.vllm_plugin.shared.server import vocabulary_of
from constrained_k2.vocabulary.vocabulary import Vocabulary

_PLAIN = frozenset((ev.ContentDelta, ev.ReasoningDelta, ev.ArgumentsDelta))
"""The events that carry text alone: nothing in them is renumbered, logged or cut."""

_PROMPT_END = 16  # tokens; more than vLLM's detokenizers look back


class LastDelta(DeltaMessage):
    """The last delta of a stream in which a call was begun, and cut off or declined."""

    ending: Ending = Field(default=Ending(), exclude=True)  # of the choice


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
        self._free_text = codecs.getincrementaldecoder("utf-8")("replace")  # of an answer that vLLM's own parsers read
        self._uncalled: UncalledFilter | None = None  # for requests that want no calls; Kimi K3's reader drops them
        self._is_set_up = False
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
            ids, text = self._without_calls(model_output_token_ids, model_output, request, finished=True)
            RequestState.of(request).endings.append(Ending())
            return super().parse(text, request, enable_auto_tools, ids)  # type: ignore[misc, no-any-return]
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
            ids, text = self._without_calls(delta_token_ids, delta_text, request, finished=finished)
            return super().parse_delta(text, ids, request, prompt_token_ids, finished=finished)  # type: ignore[misc]
        events = self._read(delta_token_ids, delta_text, request, finished=finished)
        is_last = finished and self._ending != Ending()
        reasoning, content = texts_of(events)
        calls = call_deltas(self._whole_calls(events) if self._whole_calls_only else events)
        if not request.include_reasoning:
            reasoning = ""
        if not (reasoning or content or calls or is_last):
            return None
        shown = {"reasoning": reasoning or None, "content": content or None, "tool_calls": calls}
        return LastDelta(**shown, ending=self._ending) if is_last else DeltaMessage(**shown)

    def _reads(self, request: Any) -> bool:
        """True if this class reads the answer; else it is free text without calls, and vLLM's parsers read it.

        Some of vLLM's parsers take an answer without reasoning for reasoning, so answers in a response format are read
        here. They cannot tell tags from text that spells tags, so answers in tags are read here too.
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

    def _without_calls(
        self, token_ids: Sequence[int], text: str, request: Any, *, finished: bool
    ) -> tuple[Sequence[int], str]:
        """The next tokens and their text, for vLLM's own parsers, without calls that the client does not want."""
        if finished and token_ids and token_ids[-1] in self._ends(request):
            token_ids = token_ids[:-1]
        ids = self._visible(token_ids, text, request, finished=finished)
        shown = b"".join(map(self.vocabulary.token_bytes, ids))
        return ids, self._free_text.decode(shown)

    def _ends(self, request: Any) -> set[int]:
        """The tokens that end an answer, if vLLM shows no text for them."""
        if field_of(request, "include_stop_str_in_output"):
            return set()
        return {*self.vocabulary.format.stop_ids, *(field_of(request, "stop_token_ids") or ())}

    def _visible(self, token_ids: Sequence[int], text: str, request: Any, *, finished: bool) -> Sequence[int]:
        """The next tokens, without text after a stop string, unwanted calls, and unrequested special tokens."""
        if not self._is_set_up:
            self._set_up(token_ids, text, request)
        if self._budget is not None:
            token_ids = self._budget.take(token_ids, text, finished=finished)
        if self._uncalled is not None:
            token_ids = self._uncalled.keep(token_ids)
        if self._dropped:
            token_ids = [token_id for token_id in token_ids if token_id not in self._dropped]
        return token_ids

    def _read(self, token_ids: Sequence[int], text: str, request: Any, *, finished: bool) -> list[ev.Event]:
        """The events of the next tokens, without text after a stop string."""
        if self._stream is None:
            self._stream = self._begun(request)
        events = self._stream.feed(self._visible(token_ids, text, request, finished=finished))
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

    def _begun(self, request: Any) -> ToolCallParser:
        constrained = carries_constraint(request.vllm_xargs)
        functions = self._functions_of(request)
        if not self.vocabulary.format.counts_dialog:
            self._first_number = calls_before(request) if self._history_calls is None else self._history_calls
        self._hides_cuts = _hides_cuts(request)
        self._whole_calls_only = self._hides_cuts or (constrained and _forbids_repeats(request))
        return ToolCallParser(
            self.vocabulary,
            in_reasoning=self._in_reasoning,
            level="strict" if constrained else "tolerant",
            tools=declared_in(functions),
            calls=self._may_call(request),
        )

    def _may_call(self, request: Any) -> bool:
        return bool(self._functions_of(request)) and request.tool_choice != "none"

    def _set_up(self, token_ids: Sequence[int], text: str, request: Any) -> None:
        """Decide which parts to hide of an answer that begins with these tokens."""
        self._is_set_up = True
        constrained = carries_constraint(request.vllm_xargs)
        if not self._may_call(request):
            if self.vocabulary.format.argument_encoding != "xtml":
                self._uncalled = UncalledFilter(self.vocabulary.format)
            if _hides_special_tokens(request):
                self._dropped = _hidden(self.vocabulary)
        stop = field_of(request, "stop")
        if stop:
            tokens = TextTokens(self.vocabulary, self._prompt_end) if constrained else None
            self._budget = TextBudget(self.vocabulary, [stop] if isinstance(stop, str) else stop, tokens)
        elif self._history_calls is not None and self.vocabulary.decode(token_ids).startswith(text):
            # Such a request does not show its stop strings: the text may end before any token.
            self._budget = TextBudget(self.vocabulary, [""], None)

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
def _hidden(vocabulary: Vocabulary) -> frozenset[int]:
    """The special tokens that no parser needs in a text without calls."""
    markers = vocabulary.format
    read = {markers.think_begin, markers.think_end}
    if markers.argument_encoding == "xtml":  # every block is a tag
        read |= markers.argument_markers | {*markers.stop_ids}
    return frozenset({*vocabulary.special_tokens.values()} - read)


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
        field_of(request, field) for field in ("stop", "stop_token_ids")
    )
