"""Renders an assistant's turn in Kimi K3's format (XTML): reasoning, response, calls."""

from collections.abc import Iterable, Sequence

from constrained_k2.errors import InvalidRequest, MalformedCompletion
from constrained_k2.formats.kimi_k3 import ARGUMENT, CALL, JSON, MESSAGE, RESPONSE, THINK, TOOLS
from constrained_k2.prompts.xtml.arguments import Argument, split_arguments
from constrained_k2.prompts.xtml.pieces import Pieces
from constrained_k2.request.spec import ToolCall
from constrained_k2.vocabulary.vocabulary import Vocabulary

Blocks = list[Argument] | str
"""The arguments of a call; a text that is not a JSON object is written as it is."""


def render_turn(
    calls: Iterable[ToolCall],
    vocabulary: Vocabulary,
    *,
    response: str = "",
    reasoning: str | None = None,
    first_index: int = 1,
) -> list[int]:
    """Render a turn as the model writes it after a generation prompt, with the tokens that end it.

    The text of special tokens in any value is encoded as ordinary tokens. Calls are numbered from ``first_index``;
    their own indexes are not read.

    Args:
        calls: The calls in their order.
        vocabulary: A Kimi K3 vocabulary.
        response: The text of the answer.
        reasoning: The text of the thinking channel; None if the prompt opened the response.
        first_index: The index of the first call.

    Raises:
        MalformedCompletion: A text contains a lone surrogate, or arguments are nested too deeply.
        FormatMismatch: The vocabulary is not Kimi K3's.
    """
    pieces, text = Pieces(), Pieces()
    text.text(response)
    write_turn(pieces, text, _blocks(calls), reasoning=reasoning, first_index=first_index)
    return _encode(pieces, vocabulary)


def turn_text(calls: Iterable[ToolCall], *, response: str = "", reasoning: str | None = None) -> str:
    """The text of a turn as :func:`render_turn` writes it, for people to read.

    Arguments that are nested too deeply appear as they are.
    """
    pieces, text = Pieces(), Pieces()
    text.text(response)
    blocks: list[tuple[str, Blocks]] = []
    for call in calls:
        try:
            blocks += _blocks([call])
        except MalformedCompletion:
            blocks.append((call.name, call.arguments))
    write_turn(pieces, text, blocks, reasoning=reasoning)
    return str(pieces)


def render_calls(calls: Iterable[ToolCall], vocabulary: Vocabulary) -> list[int]:
    """Render the end of a response and the calls after it, without the end of the turn; nothing for no calls.

    Raises:
        MalformedCompletion: As :func:`render_turn`.
    """
    pieces = Pieces()
    if blocks := _blocks(calls):
        pieces.close(RESPONSE)
        _write_calls(pieces, blocks, 1)
    return _encode(pieces, vocabulary)


def _blocks(calls: Iterable[ToolCall]) -> list[tuple[str, Blocks]]:
    try:
        return [
            (call.name, split_arguments(call.arguments, f"calls[{number}].arguments"))
            for number, call in enumerate(calls)
        ]
    except InvalidRequest as error:
        raise MalformedCompletion(*error.args) from error


def _encode(pieces: Pieces, vocabulary: Vocabulary) -> list[int]:
    try:
        return pieces.encode(vocabulary)
    except InvalidRequest as error:
        raise MalformedCompletion(*error.args) from error


def write_turn(
    pieces: Pieces,
    response: Pieces,
    calls: Sequence[tuple[str, Blocks]],
    *,
    reasoning: str | None,
    first_index: int = 1,
) -> None:
    """Write a turn after the opening of its first channel, which is thinking if there is reasoning, else response."""
    if reasoning is not None:
        pieces.text(reasoning)
        pieces.close(THINK)
        pieces.open(RESPONSE)
    pieces.extend(response)
    pieces.close(RESPONSE)
    if calls:
        _write_calls(pieces, calls, first_index)
    pieces.close(MESSAGE)
    pieces.end_message()


def _write_calls(pieces: Pieces, calls: Sequence[tuple[str, Blocks]], first_index: int) -> None:
    pieces.open(TOOLS)
    for index, (name, blocks) in enumerate(calls, first_index):
        pieces.open(CALL, (("tool", name), ("index", str(index))))
        _write_arguments(pieces, blocks)
        pieces.close(CALL)
    pieces.close(TOOLS)


def _write_arguments(pieces: Pieces, blocks: Blocks) -> None:
    if isinstance(blocks, str):
        pieces.open(JSON, (("type", "object"),))
        pieces.text(blocks)
        pieces.close(JSON)
        return
    for key, kind, text in blocks:
        pieces.open(ARGUMENT, (("key", key), ("type", kind)))
        pieces.text(text)
        pieces.close(ARGUMENT)
