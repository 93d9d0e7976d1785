"""Kimi K2's wire format: its special tokens, markers and call ids.

    <|tool_calls_section_begin|>
      <|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Beijing"}<|tool_call_end|>
    <|tool_calls_section_end|><|im_end|>

Sources: Kimi K2 technical report, appendix B (format and numbering of calls); the checkpoint's tokenizer_config.json
(ids of the special tokens).
"""

import re
from collections.abc import Mapping

from constrained_k2.formats.base import WireFormat
from constrained_k2.formats.phases import Need, Phase, Transition

BOS, EOS, EOT, UNK, PAD = "[BOS]", "[EOS]", "[EOT]", "[UNK]", "[PAD]"
TURN_END, MIDDLE = "<|im_end|>", "<|im_middle|>"
USER, ASSISTANT, SYSTEM = "<|im_user|>", "<|im_assistant|>", "<|im_system|>"
HEADER_BEGIN, HEADER_END = "<|start_header_id|>", "<|end_header_id|>"
SECTION_BEGIN, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL_BEGIN, ARGUMENT_BEGIN, CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
MEDIA_MARKERS = ("<|media_begin|>", "<|media_content|>", "<|media_end|>", "<|media_pad|>")
THINK_BEGIN, THINK_END = "<think>", "</think>"

GENERATION_PROMPT = f"{ASSISTANT}assistant{MIDDLE}"
"""Opens the turn to be generated. K2.5 and later append ``<think>`` or ``<think></think>``."""

CALL_MARKERS = ("section_begin", "section_end", "call_begin", "argument_begin", "call_end")
"""The markers of tool calls, by their fields of :class:`WireFormat`."""

CALL_MARKER_PREFIX = "<|tool_call"
"""The common prefix of these markers' texts; no other special token has it."""

MISSPELLED_MARKERS = {"<|tool_call_section_begin|>": "section_begin", "<|tool_call_section_end|>": "section_end"}
"""Spellings that models write as text, and that vLLM's and SGLang's parsers accept too -> marker."""

BASE_SIZE = 163_584
"""Ordinary tokens of Kimi K2's vocabulary, and so its first special id."""

SPECIAL_COUNT = 256
"""Special ids that follow the ordinary tokens; those without a name are :func:`reserved_text`."""

SPECIAL_TOKENS: Mapping[int, str] = {
    **dict(enumerate((BOS, EOS, TURN_END, USER, ASSISTANT))),
    **dict(enumerate((HEADER_BEGIN, HEADER_END), 6)),
    **dict(enumerate((EOT, SYSTEM, SECTION_BEGIN, SECTION_END, CALL_BEGIN, ARGUMENT_BEGIN, CALL_END), 9)),
    **dict(enumerate((MIDDLE, *MEDIA_MARKERS, THINK_BEGIN, THINK_END), 17)),
    **dict(enumerate((UNK, PAD), 254)),
}
"""Offset from the last ordinary token -> text, as in the checkpoint's ``added_tokens_decoder``."""

MARKER_TEXTS: Mapping[str, str] = {
    "section_begin": SECTION_BEGIN,
    "section_end": SECTION_END,
    "call_begin": CALL_BEGIN,
    "argument_begin": ARGUMENT_BEGIN,
    "call_end": CALL_END,
    "think_begin": THINK_BEGIN,
    "think_end": THINK_END,
    "turn_end": TURN_END,
    "text_end": EOS,
}
"""Field of :class:`WireFormat` -> the text that the tokenizer maps to that one id."""

SPECIAL_SHAPE = r"<\|[^|<>]{1,64}\|>|</?think>|\[[A-Z]{3}\]"
"""Regular expression of everything that looks like a special token; two matches never overlap."""

NAMED_SPECIAL = re.compile(r"<\|[^|<>]{1,64}\|>|</?think>|\[(?:BOS|EOS|EOT|UNK|PAD)\]")
"""What no function's name may contain: all texts that tokenizers may make special tokens."""

CALL_ID_PREFIX = "functions."
"""Begins every call id; the function's name and ``:INDEX`` follow."""

TURN_OPENING = r"<\|im_(user|assistant|system)\|>((?:(?!<\|im_).)*)<\|im_middle\|>"
"""Regular expression of a turn's opening: who speaks, and the role's name."""

OPEN_TURN = r"<\|im_assistant\|>[^<]*<\|im_middle\|>(?:<think>(?:</think>)?)?"
"""Regular expression of an assistant's turn that has been opened, with its reasoning opened or closed."""


def reserved_text(token_id: int | str) -> str:
    """The text of a special token that the tokenizer does not name."""
    return f"<|reserved_token_{token_id}|>"


ToolCallFormat = WireFormat

_CALLS = Transition(("section_begin",), Phase.SECTION, Need.CALL)


def _stops(needs: Need = Need.NOTHING) -> tuple[Transition, Transition]:
    return Transition(("turn_end",), Phase.DONE, needs), Transition(("text_end",), Phase.DONE, needs)


TRANSITIONS: Mapping[Phase, tuple[Transition, ...]] = {
    Phase.START: (Transition(("think_begin",), Phase.REASONING, Need.REASONING), _CALLS, *_stops(Need.FREE)),
    Phase.REASONING: (Transition(("think_end",), Phase.TEXT), _CALLS),
    Phase.TEXT: (_CALLS, *_stops(Need.FREE)),
    Phase.ANSWER: _stops(Need.FORM),
    Phase.SECTION: (Transition(("call_begin",), Phase.CALL_ID),),
    Phase.CALL_ID: (
        Transition(("argument_begin",), Phase.ARGUMENTS),
        Transition(("section_end",), Phase.CLOSED, Need.DECLINING),
    ),
    Phase.ARGUMENTS: (Transition(("call_end",), Phase.BETWEEN),),
    Phase.BETWEEN: (
        Transition(("section_end",), Phase.CLOSED),
        Transition(("call_begin",), Phase.CALL_ID, Need.SEVERAL_CALLS),
    ),
    Phase.REPEATED: (Transition(("section_end",), Phase.CLOSED),),
    Phase.CLOSED: _stops(),
}
"""The transitions from each phase. Every transition is one marker."""

KIMI_K2 = WireFormat(
    name="Kimi K2",
    marker_texts=MARKER_TEXTS,
    optional_markers=frozenset({"think_begin", "think_end"}),  # K2-Instruct's tokenizer does not name these tokens
    special_texts=frozenset(SPECIAL_TOKENS.values()),
    special_pattern=NAMED_SPECIAL,
    transitions=TRANSITIONS,
    reasoning_opening=("think_begin",),
    call_id_prefix=CALL_ID_PREFIX,
    header_begin=CALL_ID_PREFIX,
    header_index=":",
).located_in({text: BASE_SIZE + offset for offset, text in SPECIAL_TOKENS.items()})
"""The format in Kimi K2's vocabulary. Checkpoints whose tokenizer names no ``<think>`` have :data:`ABSENT` there."""
