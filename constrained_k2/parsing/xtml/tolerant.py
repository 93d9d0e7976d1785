"""The tolerant XTML parser, which recovers Kimi K3's calls that deviate from the wire format."""

import re
from collections.abc import Mapping

from constrained_k2.formats.kimi_k3 import ARGUMENT, CALL, CLOSE, JSON, MESSAGE, RESPONSE, THINK, TOOLS
from constrained_k2.parsing import events as ev
from constrained_k2.parsing.arguments import ArgumentsText
from constrained_k2.parsing.call_prefix import MAX_BLANKS
from constrained_k2.parsing.xtml.reader import Block, XtmlReader
from constrained_k2.parsing.xtml.spelled import SpelledTags
from constrained_k2.parsing.xtml.tag_content import TagContent, ends_call, read_tag
from constrained_k2.parsing.xtml.tags import BLANKS, Part, Tag
from constrained_k2.parsing.xtml.values import STRING, StringValue, TolerantValue

_INDEX = re.compile(r"[1-9][0-9]{0,17}")

_AFTER: Mapping[tuple[bool, str], Block] = {
    (False, THINK): Block.REASONING,
    (True, THINK): Block.THOUGHT,
    (False, RESPONSE): Block.RESPONSE,
    (True, RESPONSE): Block.RESPONDED,
    (False, TOOLS): Block.TOOLS,
    (True, TOOLS): Block.CLOSED,
    (True, MESSAGE): Block.ENDED,
}
"""Whether a tag closes, and its name -> the state after it, whatever the state before."""

_EMPTY = frozenset({Block.START, Block.THOUGHT, Block.RESPONDED})
_TEXT = frozenset({Block.START, Block.REASONING, Block.RESPONSE})


class TolerantXtmlReader(XtmlReader):
    """The tolerant level of :class:`constrained_k2.ToolCallParser` for XTML.

    The tags of blocks are structure wherever they are written; a call counts once its tag is complete. Blanks between
    blocks are dropped. Other text outside blocks is content, and so is a call without a name.

    Spelled-out tags count only for calls of declared tools, directly after the opening of a section that begins or
    follows the response, and outside code that the response quotes. All tags of such a call are spelled out.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._blanks = ""  # blanks buffered between blocks; content if text follows
        self._has_text = False  # text was read since the latest tag, so blanks are part of the text
        self._in_section = False
        self._pending: dict[str, None] = {}  # recoveries for the next call; an ordered set
        self._seen: set[str] = set()  # keys of the current call
        self._written: list[str] = []  # the model's text of the current call's arguments
        self._spelled_tags = SpelledTags()
        self._prefix = ""  # buffered tags and blanks that may open a spelled section; content if no call follows
        self._opens_section = False  # the latest buffered tag opens a section
        self._is_spelled = False  # the section, and so the current call, is spelled
        self._backticks = 0  # number in the content; if it is odd, code is being quoted
        self._is_changed = False  # a value of the current call is not what the model wrote
        self._is_uncalled = False  # inside a section or call although the request allows no calls

    def _read_part(self, part: Part) -> None:
        if isinstance(part, str):
            is_prose = not self._is_in_call() and self._state is not Block.REASONING
            if not (self.calls and self.declared and (is_prose or self._is_spelled)):
                self._read_text(part)
                return
            for piece in self._spelled_tags.split(part):
                if isinstance(piece, str):
                    self._read_text(piece)
                else:
                    self._read_spelled(piece)
            return
        self._flush_spelled()
        if isinstance(part, Tag):
            self._read_tag(part)
        else:
            if self._is_in_call():
                self._cut_call()
            self._content(part.text)

    def _read_text(self, part: str) -> None:
        if self._prefix and not part.strip(BLANKS) and len(self._prefix) <= MAX_BLANKS:
            self._prefix += part
            return
        self._release_prefix()
        if self._state is Block.VALUE:
            self._written.append(part)
            self._emit_arguments(self._value.feed(part))
        elif self._state in _TEXT or part.strip(BLANKS) or self._has_text:
            if self._state is Block.CALL:
                self._cut_call()
            self._content(part)
        elif self._state is Block.CALL:
            self._written.append(part)
            self._record("blanks")
        else:
            self._blanks += part
            if len(self._blanks) > MAX_BLANKS:
                self._content("")

    def _read_tag(self, tag: Tag) -> None:
        content = read_tag(tag)
        if self._is_in_call():
            if self._read_tag_of_call(tag, content):
                return
            self._end_call(whole=ends_call(tag, content))
        self._is_spelled = False
        if not self.calls and content is not None and content.name in (TOOLS, CALL):
            self._is_uncalled = not tag.closes or content.name == CALL
            self._structure(self._take_blanks() + tag.text)
        elif content is None:
            self._content(tag.text)
        elif content.name == CALL and not tag.closes and self._open_call(tag, content):
            pass
        elif state := _AFTER.get((tag.closes, content.name)):
            self._enter(tag, state)
        elif self._state is Block.BROKEN and content.name == CALL and tag.closes:
            self._enter(tag, Block.TOOLS)
        else:
            self._content(tag.text)

    def _read_spelled(self, tag: Tag) -> None:
        """Read a tag that is spelled out: it is text unless it is part of a call, or opens one."""
        content = read_tag(tag)
        if self._is_in_call():
            if self._read_tag_of_call(tag, content):
                return
            if self._state is Block.VALUE or not ends_call(tag, content):
                self._read_text(tag.text)
                return
            self._end_call(whole=True)
        name = content.name if content else ""
        declared = content and content.attributes.get("tool") in (self.declared or ())
        opens = name == CALL and not tag.closes and declared and (self._is_spelled or self._opens_section)
        if content and opens:
            self._open_spelled(tag, content)
        elif self._is_spelled and tag.closes and name in (TOOLS, MESSAGE):
            self._enter(tag, _AFTER[True, name])
        elif self._may_precede_call(name, closes=tag.closes):
            self._prefix += tag.text
            self._opens_section = not tag.closes
        else:
            self._release_prefix()
            self._content(tag.text)

    def _may_precede_call(self, name: str, *, closes: bool) -> bool:
        """True if a spelled tag ends the response, or opens a section at the response's start or after its end."""
        if self._backticks % 2 or self._opens_section:
            return False
        if name == RESPONSE and closes:
            return not self._prefix and self._state in (Block.START, Block.RESPONSE)
        return name == TOOLS and not closes and (bool(self._prefix) or self._state in _EMPTY)

    def _open_spelled(self, tag: Tag, content: TagContent) -> None:
        """Begin a spelled call, and its section if it is the section's first call."""
        if not self._is_spelled:
            if not self._prefix.startswith(CLOSE) and self._state is not Block.RESPONDED:
                self._pending["no_response"] = None
            if self._prefix.split() != [self._prefix]:
                self._pending["blanks"] = None
            self._structure(self._prefix)
            self._prefix, self._opens_section = "", False
            self._is_spelled = self._in_section = True
            self._state, self._has_text = Block.TOOLS, False
        self._pending["spelled_markers"] = None
        self._open_call(tag, content)

    def _flush_spelled(self) -> None:
        """Read the text that might have become a spelled tag, and give up a section without calls."""
        if text := self._spelled_tags.flush():
            self._read_text(text)
        self._release_prefix()

    def _release_prefix(self) -> None:
        prefix, self._prefix, self._opens_section = self._prefix, "", False
        if prefix:
            self._content(prefix)

    def _enter(self, tag: Tag, state: Block) -> None:
        """Enter or leave a block."""
        self._is_uncalled = False
        if state is Block.TOOLS and not tag.closes:
            self._in_section = True
            if self._state is Block.REASONING:
                self._pending["in_reasoning"] = None
            elif self._state in (Block.START, Block.THOUGHT, Block.RESPONSE):
                self._pending["no_response"] = None
        elif state is not Block.TOOLS:
            self._in_section = False
            self._pending = {}
        self._structure(self._take_blanks() + tag.text)
        self._has_text = False
        self._state = state

    def _open_call(self, tag: Tag, content: TagContent) -> bool:
        """Begin a call; False if its tag names no function."""
        name, index = content.attributes.get("tool", ""), content.attributes.get("index", "")
        if self._markers.name_problem(name):
            return False
        recoveries = dict(self._pending)
        if self._state is Block.REASONING:
            recoveries["in_reasoning"] = None
        if not self._in_section:
            recoveries["no_section"] = None
        if self._blanks:
            recoveries["blanks"] = None
        recoveries |= dict.fromkeys(content.recoveries)
        if list(content.attributes) != ["tool", "index"] or not _INDEX.fullmatch(index):
            recoveries["attributes"] = None
        self._structure(self._take_blanks() + tag.text)
        self._start_call(name, int(index) if _INDEX.fullmatch(index) else self._position + 2)
        self._pending, self._seen = {}, set()
        self._written, self._is_changed, self._has_text = [], False, False
        self._record(*recoveries)
        return True

    def _read_tag_of_call(self, tag: Tag, content: TagContent | None) -> bool:
        """Read a tag inside a call; False if it does not belong there."""
        if content is None:
            return False
        name, attributes = content.name, content.attributes
        if self._state is Block.VALUE:
            if not tag.closes or name != (JSON if self._is_raw else ARGUMENT):
                return False
            self._finish_value()
        elif tag.closes and name == CALL:
            self._record(*content.recoveries)
            self._finish_call()
            self._structure(tag.text)
            return True
        elif not tag.closes and name == ARGUMENT and "key" in attributes and not self._is_raw:
            self._open_argument(attributes)
        elif not tag.closes and name == JSON and not (self._keys or self._is_raw):
            self._start_raw()
            self._value = ArgumentsText()
        else:
            return False
        self._record(*content.recoveries)
        self._written.append(tag.text)
        self._structure(tag.text)
        return True

    def _open_argument(self, attributes: dict[str, str]) -> None:
        key, kind = attributes["key"], attributes.get("type")
        if key in self._seen:
            self._record("repeated_key")
        self._seen.add(key)
        if kind is None:
            self._record("no_type")
        if list(attributes) not in (["key", "type"], ["key"]):
            self._record("attributes")
        self._start_argument(key, StringValue() if kind in (None, STRING) else TolerantValue(kind))

    def _finish_value(self) -> None:
        rest, recoveries = self._value.finish() or ("", ())
        self._emit_arguments(rest)
        self._record(*recoveries)
        self._is_changed = self._is_changed or bool(recoveries)
        self._state = Block.CALL

    def _finish_call(self) -> None:
        if self._is_changed:
            self.events.append(ev.ArgumentsRecovered(self._position, "".join(self._written)))
        super()._finish_call()

    def _end_call(self, *, whole: bool) -> None:
        """End a call without an end tag: complete if its arguments are, and the model went on or stopped."""
        raw = self._value if self._is_raw else None
        is_complete = raw.is_object if isinstance(raw, ArgumentsText) else self._keys > 0
        if whole and self._state is Block.CALL and is_complete:
            self._record("no_call_end")
            self._finish_call()
        else:
            self._cut_call()

    def _end_in_tag(self, tag: Tag) -> None:
        self._flush_spelled()
        is_call = self._state is Block.TOOLS or tag.body.lstrip(BLANKS).startswith(CALL)
        if self._is_in_call():
            self._structure(tag.text)
        elif self.calls and is_call and not tag.closes:
            self.events.append(ev.HeaderCut(tag.body))
        elif tag.is_name or (is_call and not self.calls):
            self._structure(tag.text)
        else:
            self._content(tag.text)

    def _end(self, *, stopped: bool) -> None:
        self._flush_spelled()
        if self._is_in_call():
            self._end_call(whole=stopped)
        if blanks := self._take_blanks():
            self._structure(blanks)

    def _content(self, text: str) -> None:
        """Emit text outside calls, and the blanks before it."""
        if self._is_uncalled:
            self._structure(self._take_blanks() + text)
            return
        if self._state is Block.START and text:
            self._state = Block.RESPONSE
        self._has_text = self._state not in _TEXT
        self._is_spelled = False
        if self._state is not Block.REASONING:
            self._backticks += text.count("`")
        self._prose(self._take_blanks() + text)

    def _take_blanks(self) -> str:
        blanks, self._blanks = self._blanks, ""
        return blanks
