"""Parsing inside vLLM, by token id, streaming and not."""

from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from vllm.entrypoints.generate.base.protocol import (
    DeltaFunctionCall,
    DeltaMessage,
    DeltaToolCall,
    ExtractedToolCallInformation,
    FunctionCall,
)
from vllm.exceptions import VLLMValidationError
from vllm.tool_parsers.abstract_tool_parser import ToolParser

from constrained_k2.errors import ConstrainedK2Error
from constrained_k2.parsing import (
    ArgumentsDelta,
    CallFinished,
    CallStarted,
    Completion,
    ContentDelta,
    Event,
    MalformedDelta,
    ReasoningDelta,
    ToolCallParser,
)
from constrained_k2.tools import ToolCall
from constrained_k2.vllm_plugin.lowering import lower
from constrained_k2.vllm_plugin.plugin import TOOL_PARSER_NAME
from constrained_k2.vllm_plugin.stop_strings import TextBudget
from constrained_k2.vocabulary import Vocabulary

_vocabularies: WeakKeyDictionary[Any, Vocabulary] = WeakKeyDictionary()


def vocabulary_of(tokenizer: Any) -> Vocabulary:
    """The vocabulary behind vLLM's tokenizer, read once for each.

    Raises:
        FormatMismatch: It is not one of Kimi K2's.
    """
    if tokenizer not in _vocabularies:
        _vocabularies[tokenizer] = Vocabulary.from_tokenizer(tokenizer)
    return _vocabularies[tokenizer]


class KimiK2ToolParser(ToolParser):
    """The name under which an operator chooses us. The work is done by :class:`ParsingByTokenId`.

    Raises:
        FormatMismatch: The tokenizer is not Kimi K2's; vLLM reports it when the server starts.
    """

    name = TOOL_PARSER_NAME
    supports_required_and_named = False

    def __init__(self, tokenizer: Any, tools: list[Any] | None = None) -> None:
        super().__init__(tokenizer, tools)
        self.vocabulary = vocabulary_of(tokenizer)

    def adjust_request(self, request: Any) -> Any:
        """Leave the request to :meth:`ParsingByTokenId.adjust_request`."""
        return request

    def extract_tool_calls(self, model_output: str, request: Any) -> ExtractedToolCallInformation:  # noqa: ARG002
        """What vLLM asks for where there are no tools: no calls."""
        return ExtractedToolCallInformation(tools_called=False, tool_calls=[], content=model_output)

    def extract_tool_calls_streaming(
        self,
        previous_text: str,  # noqa: ARG002 - vLLM's signature
        current_text: str,  # noqa: ARG002
        delta_text: str,
        *_: Any,
    ) -> DeltaMessage | None:
        """What vLLM asks for where there are no tools: the text."""
        return DeltaMessage(content=delta_text) if delta_text else None


class ParsingByTokenId:
    """Mixed into the ``Parser`` that vLLM composes: one per completion, or per request for its adjustment."""

    always_adjust_request = True  # also with tool_choice "none", under which markers are forbidden

    def __init__(self, tokenizer: Any, tools: list[Any] | None = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(tokenizer, tools, *args, **kwargs)  # type: ignore[call-arg]
        self._in_reasoning = False
        self._stream: ToolCallParser | None = None
        self._budget: TextBudget | None = None
        self._held: list[Event] = []

    @property
    def _vocabulary(self) -> Vocabulary:
        vocabulary: Vocabulary = self.tool_parser.vocabulary  # type: ignore[attr-defined]
        return vocabulary

    @property
    def _separates_reasoning(self) -> bool:
        return self.reasoning_parser is not None  # type: ignore[attr-defined]

    def adjust_request(self, request: Any) -> Any:
        """Lower the request; vLLM answers the error raised here with HTTP 400.

        Raises:
            VLLMValidationError: The request cannot be constrained.
        """
        if self._separates_reasoning:
            request = self.reasoning_parser.adjust_request(request)  # type: ignore[attr-defined]
        template = getattr(self.model_tokenizer, "chat_template", None)  # type: ignore[attr-defined]
        thinking = self._separates_reasoning or "<think>" in str(template)
        try:
            lower(request, thinking=thinking)
        except ConstrainedK2Error as error:
            raise VLLMValidationError(str(error), parameter=error.place or None) from error
        return request

    def set_prompt_token_ids(self, prompt_token_ids: Sequence[int]) -> None:
        """Learn whether the prompt ends inside the reasoning."""
        self._in_reasoning = bool(prompt_token_ids) and prompt_token_ids[-1] == self._vocabulary.format.think_begin

    def parse(
        self,
        model_output: str,
        request: Any,
        enable_auto_tools: bool = False,  # noqa: FBT001, FBT002 - vLLM's signature
        model_output_token_ids: Sequence[int] = (),
    ) -> tuple[str | None, str | None, list[FunctionCall] | None]:
        """Read a whole completion: ``(reasoning, content, tool calls)``."""
        if not request.tools:
            parsed: tuple[str | None, str | None, list[FunctionCall] | None] = super().parse(  # type: ignore[misc]
                model_output, request, enable_auto_tools, model_output_token_ids
            )
            return parsed
        events = self._read(model_output_token_ids, model_output, request, finished=True)
        reasoning, content = _texts(events)
        calls = () if request.tool_choice == "none" else Completion.from_events(events).tool_calls
        return reasoning or None, content or None, [_function_call(call) for call in calls] or None

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
        if not request.tools:
            delta: DeltaMessage | None = super().parse_delta(  # type: ignore[misc]
                delta_text, delta_token_ids, request, prompt_token_ids, finished=finished
            )
            return delta
        if self._stream is None:
            self.set_prompt_token_ids(prompt_token_ids or ())
        events = self._read(delta_token_ids, delta_text, request, finished=finished)
        reasoning, content = _texts(events)
        calls = [] if request.tool_choice == "none" else _call_deltas(self._whole_calls(events, request))
        if not request.include_reasoning:
            reasoning = ""
        if not (reasoning or content or calls):
            return None
        return DeltaMessage(reasoning=reasoning or None, content=content or None, tool_calls=calls)

    def _read(self, token_ids: Sequence[int], text: str, request: Any, *, finished: bool) -> list[Event]:
        """The events of the next tokens, as far as stop strings let them be seen."""
        if self._stream is None:
            self._stream = ToolCallParser(self._vocabulary, in_reasoning=self._in_reasoning)
            if getattr(request, "stop", None) and not getattr(request, "include_stop_str_in_output", False):
                self._budget = TextBudget(self._vocabulary)
        if self._budget is not None:
            token_ids = self._budget.take(token_ids, text, finished=finished)
        events = self._stream.feed(token_ids)
        return events + self._stream.finish() if finished else events

    def _whole_calls(self, events: list[Event], request: Any) -> list[Event]:
        """The events to show now: where a stop may cut a call anywhere, a call's are held back until it is whole."""
        if not any(getattr(request, field, None) for field in ("stop", "stop_token_ids")):
            return events
        self._held += events
        ends = [number for number, event in enumerate(self._held) if isinstance(event, CallFinished)]
        shown = self._held[: ends[-1] + 1] if ends else []
        self._held = self._held[len(shown) :]
        return shown


def _texts(events: Sequence[Event]) -> tuple[str, str]:
    """The reasoning and the content in the events; what is no call is content, so that nothing disappears."""
    reasoning = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    content = "".join(event.text for event in events if isinstance(event, ContentDelta | MalformedDelta))
    return reasoning, content


def _function_call(call: ToolCall) -> FunctionCall:
    return FunctionCall(id=call.id, name=call.name, arguments=call.arguments)


def _call_deltas(events: Iterable[Event]) -> list[DeltaToolCall]:
    """The events' calls as the streaming API shows them: at most one delta a call, its header before its arguments."""
    deltas: dict[int, DeltaToolCall] = {}
    for event in events:
        if isinstance(event, CallStarted):
            call = ToolCall(event.name, event.index, "")
            deltas[event.position] = DeltaToolCall(
                index=event.position,
                id=call.id,
                type="function",
                function=DeltaFunctionCall(name=event.name, arguments=""),
            )
        elif isinstance(event, ArgumentsDelta):
            delta = deltas.setdefault(
                event.position, DeltaToolCall(index=event.position, function=DeltaFunctionCall(arguments=""))
            )
            delta.function.arguments += event.text
    return list(deltas.values())
