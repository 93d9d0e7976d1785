"""Renders requests as Kimi K3's prompts: the text, and the exact token ids.

Order: tools, effort, the dialog, tool choice, response format, generation prompt. If the two revisions of the
checkpoint's encoder differ, the newer one is followed: reasoning of blanks alone is written as it is (older: left out),
and so are values in a JSON text of arguments (older: written again); an array as arguments becomes a ``json`` block
(older: an error); an unknown role is an error (older: the message is left out). A golden prompt has such a value, 1e2.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from constrained_k2.errors import InvalidRequest, excerpt, kind_of_json
from constrained_k2.formats.kimi_k3 import IMAGE_PLACEHOLDER, MESSAGE, RESPONSE, THINK
from constrained_k2.prompts.content import text_of
from constrained_k2.prompts.rendered import RenderedPrompt
from constrained_k2.prompts.special_text import SpecialTexts
from constrained_k2.prompts.xtml.arguments import split_arguments
from constrained_k2.prompts.xtml.contract import check_contract
from constrained_k2.prompts.xtml.options import PromptOptions, read_options
from constrained_k2.prompts.xtml.pieces import Pieces
from constrained_k2.prompts.xtml.repair import IMAGE_PARTS, repair_history
from constrained_k2.prompts.xtml.results import Message, function_of, in_order_of_calls
from constrained_k2.prompts.xtml.system_messages import (
    write_effort,
    write_response_format,
    write_tool_choice,
    write_tools,
)
from constrained_k2.prompts.xtml.turn import Blocks, write_turn
from constrained_k2.request.values import array_at, object_at
from constrained_k2.vocabulary.vocabulary import Vocabulary

ImageSizes = Sequence[tuple[int, int]]


class XtmlRenderer:
    """Renders requests with a Kimi K3 vocabulary; no chat template is needed."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._specials = SpecialTexts(vocabulary.special_tokens)

    def render(
        self, body: object, *, repair: bool = True, contract: bool | None = None, image_sizes: ImageSizes | None = None
    ) -> RenderedPrompt:
        """Render a decoded chat-completions request.

        The fields used are ``messages``, ``tools``, ``tool_choice``, ``response_format``, ``add_generation_prompt``,
        and the fields of thinking (:func:`constrained_k2.prompts.xtml.options.read_options`).

        Args:
            body: The request.
            repair: Repair the history first (:func:`constrained_k2.prompts.xtml.repair.repair_history`).
            contract: Refuse what Kimi K3's public API refuses (:func:`check_contract`); None for the value of
                ``repair``.
            image_sizes: Width and height of each image in pixels, in the order of the rendered prompt. Without them an
                image is a placeholder, in ordinary tokens.

        Raises:
            InvalidRequest: The request has no clear meaning, or breaks the contract; ``location`` names the value.
            FormatMismatch: The vocabulary is not Kimi K3's.
        """
        given = object_at("body", body)
        if repair if contract is None else contract:
            check_contract(given)
        repaired, repairs = repair_history(given) if repair else (given, [])
        pieces = write_prompt(repaired, read_options(repaired), image_sizes)
        ids, spans = pieces.encode(self.vocabulary), pieces.plain_spans(self._specials)
        return RenderedPrompt(str(pieces), tuple(ids), tuple(repairs), repaired, tuple(spans))


def write_prompt(body: Mapping[str, Any], options: PromptOptions, image_sizes: ImageSizes | None = None) -> Pieces:
    """Write the prompt of a request as it is, without repairs.

    Raises:
        InvalidRequest: The request has no clear meaning.
    """
    if body.get("continue_final_message"):
        problem = "the prompts of Kimi K3 have no known form that continues a message"
        raise InvalidRequest(problem, "continue_final_message", "Leave it out")
    pieces = Pieces()
    if tools := body.get("tools"):
        write_tools(pieces, array_at("tools", tools), "tools")
    if options.thinking and options.effort is not None:
        write_effort(pieces, options.effort)
    given = enumerate(array_at("messages", body.get("messages")))
    messages = [(at := f"messages[{number}]", object_at(at, message)) for number, message in given]
    _Dialog(pieces, image_sizes, thinking=options.thinking).write(in_order_of_calls(messages))
    if options.tool_choice is not None:
        write_tool_choice(pieces, options.tool_choice)
    if options.response_format is not None:
        write_response_format(pieces, options.response_format)
    if options.add_generation_prompt:
        pieces.open(MESSAGE, (("role", "assistant"),))
        pieces.open(THINK if options.thinking else RESPONSE)
    return pieces


class _Dialog:
    """Writes the messages of a dialog."""

    def __init__(self, pieces: Pieces, image_sizes: ImageSizes | None, *, thinking: bool) -> None:
        self._pieces = pieces
        self._thinking = thinking
        self._sizes = image_sizes
        self._images = 0  # number of images so far
        self._calls: Sequence[Any] = ()  # calls of the last assistant message
        self._results = 0  # number of results since that message

    def write(self, messages: Sequence[Message]) -> None:
        for location, message in messages:
            self._message(message, location)
        if self._sizes is not None and self._images != len(self._sizes):
            raise InvalidRequest(f"has {self._images} images, not {len(self._sizes)}", "messages")

    def _message(self, message: Mapping[str, Any], location: str) -> None:
        role = message.get("role")
        if role == "system" and message.get("tools"):
            at = f"{location}.tools"
            write_tools(self._pieces, array_at(at, message["tools"]), at, extend=True)
        elif role in ("system", "user"):
            self._open(message, location)
            self._pieces.extend(self._content(message, location))
            self._close()
        elif role == "tool":
            self._result(message, location)
        elif role == "assistant":
            self._assistant(message, location)
        else:
            remedy = "Use assistant, system, tool or user"
            raise InvalidRequest(f"unknown role {excerpt(role)}", f"{location}.role", remedy)

    def _open(self, message: Mapping[str, Any], location: str) -> None:
        attributes = [("role", str(message["role"]))]
        if name := message.get("name"):
            attributes.append(("name", _string(name, f"{location}.name")))
        self._pieces.open(MESSAGE, attributes)

    def _close(self) -> None:
        self._pieces.close(MESSAGE)
        self._pieces.end_message()

    def _assistant(self, message: Mapping[str, Any], location: str) -> None:
        self._open(message, location)
        reasoning: str | None = None
        if self._thinking:
            self._pieces.open(THINK)
            name = "reasoning_content" if message.get("reasoning_content") else "reasoning"
            reasoning = _string(message.get(name) or "", f"{location}.{name}")
        else:
            self._pieces.open(RESPONSE)
        at = f"{location}.tool_calls"
        self._calls = array_at(at, message.get("tool_calls") or ())
        self._results = 0
        calls = [_call(call, f"{at}[{number}]") for number, call in enumerate(self._calls)]
        write_turn(self._pieces, self._content(message, location), calls, reasoning=reasoning)

    def _result(self, message: Mapping[str, Any], location: str) -> None:
        self._results += 1
        name = message.get("tool") or message.get("name")
        if not name and self._results <= len(self._calls):
            name = function_of(self._calls[self._results - 1]).get("name")
        if not name:
            raise InvalidRequest("the result answers no call", location, "Send its call, or the function's name")
        tool = _string(name, f"{location}.name")
        self._pieces.open(MESSAGE, (("role", "tool"), ("tool", tool), ("index", str(self._results))))
        self._pieces.extend(self._content(message, location))
        self._close()

    def _content(self, message: Mapping[str, Any], location: str) -> Pieces:
        """The content of a message: each text of a list is a piece of its own."""
        pieces, content, at = Pieces(), message.get("content"), f"{location}.content"
        if not isinstance(content, list | tuple):
            pieces.text(text_of(content, "user", at, calls=False))
            return pieces
        for number, part in enumerate(content):
            here = f"{at}[{number}]"
            kind = part.get("type") if isinstance(part, Mapping) else None
            if isinstance(kind, str) and kind in IMAGE_PARTS:
                self._image(pieces, here)
                continue
            text = text_of([part], "user", here.removesuffix(f"[{number}]"), calls=False)
            if not isinstance(text, str):
                raise InvalidRequest(f"the part type {excerpt(kind)} has no form in a prompt", f"{here}.type")
            pieces.text(text)
        return pieces

    def _image(self, pieces: Pieces, location: str) -> None:
        self._images += 1
        if self._sizes is None:
            pieces.text(IMAGE_PLACEHOLDER)
        elif self._images > len(self._sizes):
            raise InvalidRequest(f"is image {self._images}, but {len(self._sizes)} have a size", location)
        else:
            pieces.image(*self._sizes[self._images - 1])


def _call(call: object, location: str) -> tuple[str, Blocks]:
    function = function_of(object_at(location, call))
    name = function.get("name")
    if not name or not isinstance(name, str):
        raise InvalidRequest('missing "name"', f"{location}.function.name", "Name the function that was called")
    return name, split_arguments(function.get("arguments"), f"{location}.function.arguments")


def _string(value: object, location: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"must be a string, not {kind_of_json(value)}", location)
    return value
