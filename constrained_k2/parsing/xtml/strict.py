"""The strict XTML parser, which accepts exactly Kimi K3's format."""

import re
from collections.abc import Mapping

from constrained_k2.formats.kimi_k3 import ARGUMENT, CALL, JSON, MESSAGE, RESPONSE, THINK, TOOLS, escape, unescape
from constrained_k2.parsing import events as ev
from constrained_k2.parsing.xtml.reader import Block, XtmlReader
from constrained_k2.parsing.xtml.tags import Part, Tag
from constrained_k2.parsing.xtml.values import OBJECT, STRING, TYPES, JsonValue, StringValue

_CALL = re.compile(rf'{CALL} tool="([^"]*)" index="([1-9][0-9]{{0,17}})"')
_ARGUMENT = re.compile(rf'{ARGUMENT} key="([^"]*)" type="({"|".join(sorted(TYPES))})"')
_RAW = f'{JSON} type="{OBJECT}"'

_NEXT: Mapping[tuple[Block, bool, str], Block] = {
    (Block.START, False, THINK): Block.REASONING,  # the prompt opened the message alone
    (Block.START, False, RESPONSE): Block.RESPONSE,
    (Block.START, True, RESPONSE): Block.RESPONDED,
    (Block.REASONING, True, THINK): Block.THOUGHT,
    (Block.THOUGHT, False, RESPONSE): Block.RESPONSE,
    (Block.RESPONSE, True, RESPONSE): Block.RESPONDED,
    (Block.RESPONDED, False, TOOLS): Block.TOOLS,
    (Block.RESPONDED, True, MESSAGE): Block.ENDED,
    (Block.TOOLS, True, TOOLS): Block.CLOSED,
    (Block.BROKEN, True, TOOLS): Block.CLOSED,
    (Block.CLOSED, True, MESSAGE): Block.ENDED,
}
"""State, whether a tag closes, and its name -> the state after it."""

_PROSE = frozenset({Block.START, Block.REASONING, Block.RESPONSE})


class StrictXtmlReader(XtmlReader):
    """The strict level of :class:`constrained_k2.ToolCallParser` for XTML."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._reason = ""  # the reason why a call is malformed

    def read(self, token_id: int) -> None:
        """Read one token; the end of the section may decline a call whose tag is open."""
        is_end = token_id == self._markers.section_end and self._state is Block.TOOLS
        if is_end and (pending := self._tags.take_pending()) is not None:
            if pending.closes:
                self._emit(pending.text)
            else:
                self._structure(pending.text)
                self.events.append(ev.CallDeclined(pending.body))
        super().read(token_id)

    def _read_part(self, part: Part) -> None:
        if self._state is Block.VALUE:
            self._in_value(part)
        elif self._state is Block.CALL:
            self._in_call(part)
        elif isinstance(part, Tag):
            self._read_tag(part)
        else:
            self._emit(part if isinstance(part, str) else part.text)

    def _read_tag(self, tag: Tag) -> None:
        """Read a tag outside calls."""
        following = _NEXT.get((self._state, tag.closes, tag.body))
        if following is not None:
            self._state = following
            self._structure(tag.text)
        elif self._state not in (Block.TOOLS, Block.BROKEN):
            self._emit(tag.text)
        elif not tag.closes and (found := _CALL.fullmatch(tag.body)) and (name := self._name(found[1])):
            self._structure(tag.text)
            self._start_call(name, int(found[2]))
        else:
            is_call = tag.body.startswith(CALL)
            if is_call and not tag.closes:
                self._state, self._reason = Block.BROKEN, f'the tag is not {CALL} tool="NAME" index="NUMBER"'
            self._emit(tag.text)
            if is_call and tag.closes:
                self._state = Block.TOOLS

    def _in_call(self, part: Part) -> None:
        is_tag = isinstance(part, Tag)
        if isinstance(part, Tag) and part.closes and part.body == CALL:
            self._finish_call()
        elif isinstance(part, Tag) and not part.closes and (found := self._argument(part.body)):
            key, kind = found
            self._start_argument(key, StringValue() if kind == STRING else JsonValue(kind))
        elif isinstance(part, Tag) and not part.closes and part.body == _RAW and not (self._keys or self._is_raw):
            self._start_raw()
        else:
            self._break(part, f"a {'tag' if is_tag else 'text'} that does not belong between arguments")
            if isinstance(part, Tag) and part.closes and part.body == TOOLS:
                self._emit_repeated()
            return
        self._structure(part.text)

    def _in_value(self, part: Part) -> None:
        if isinstance(part, str):
            self._emit_arguments(self._value.feed(part))
        elif isinstance(part, Tag) and part.closes and part.body == (JSON if self._is_raw else ARGUMENT):
            ended = self._value.finish()
            if ended is None:
                self._break(part, "the value does not have the type that its tag names")
            else:
                self._emit_arguments(ended[0])
                self._structure(part.text)
                self._state = Block.CALL
        else:
            self._break(part, "the value does not end in its tag")

    def _argument(self, body: str) -> tuple[str, str] | None:
        """The key and the type that the tag of an argument names."""
        found = None if self._is_raw else _ARGUMENT.fullmatch(body)
        return (unescape(found[1]), found[2]) if found and _is_escaped(found[1]) else None

    def _name(self, written: str) -> str:
        """The function that the tag of a call names; empty if it is malformed."""
        name = unescape(written)
        return name if _is_escaped(written) and not self._markers.name_problem(name) else ""

    def _break(self, part: Part, reason: str) -> None:
        """Cut the call off: the text that follows, up to its end, is malformed."""
        self._cut_call()
        self._reason = reason
        self._read_part(part)

    def _end_in_tag(self, tag: Tag) -> None:
        if self._state in (Block.TOOLS, Block.BROKEN) and not tag.closes:
            self.events.append(ev.HeaderCut(tag.body))
        elif tag.is_name or self._is_in_call():
            self._structure(tag.text)
        else:
            self._emit(tag.text)

    def _end(self, *, stopped: bool) -> None:  # noqa: ARG002 - an open call is cut off either way
        if self._is_in_call():
            self._cut_call()
            self._state = Block.TOOLS

    def _emit(self, text: str) -> None:
        if not text:
            return
        if self._state is Block.START:
            self._state = Block.RESPONSE
        if self._state in _PROSE:
            self._prose(text)
        else:
            reason = self._reason if self._state is Block.BROKEN else "text between blocks"
            self.events.append(ev.MalformedDelta(text, reason))


def _is_escaped(text: str) -> bool:
    return escape(unescape(text)) == text
