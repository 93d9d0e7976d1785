"""A request as the prompt that a checkpoint's own chat template makes of it."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from constrained_k2 import tokenizer_files
from constrained_k2.errors import FormatMismatch, InvalidRequest, kind_of_json
from constrained_k2.rendering.mending import Repair
from constrained_k2.rendering.repair import repair_messages
from constrained_k2.rendering.special_text import SpecialTexts
from constrained_k2.thinking import stated_thinking
from constrained_k2.vocabulary import Vocabulary

GENERATION_PROMPT = "<|im_assistant|>assistant<|im_middle|>"
"""What opens the turn that is to be generated; K2.5 and later write ``<think>`` or ``<think></think>`` behind it."""

_OPEN_TURN = re.compile(r"<\|im_assistant\|>[^<]*<\|im_middle\|>(?:<think>(?:</think>)?)?\s*\Z")
_OURS = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "messages",
        "tokenize",
        "tools",
    }
)

Template = Callable[..., Any]
"""``(messages, tools, **variables) -> text``."""


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A prompt and how it came about.

    Attributes:
        text: All of it, special tokens spelled out.
        ids: What a server makes of the text: special tokens recognised wherever they are spelled.
        repairs: What was changed in the request before, in order.
        body: The request that was rendered.
    """

    text: str
    ids: tuple[int, ...]
    repairs: tuple[Repair, ...]
    body: Mapping[str, Any]


class PromptRenderer:
    """Renders requests for one checkpoint.

    Args:
        vocabulary: The checkpoint's.
        template: Its chat template.

    Attributes:
        vocabulary: As given.
    """

    def __init__(self, vocabulary: Vocabulary, template: Template) -> None:
        self.vocabulary = vocabulary
        self._template = template
        self._specials = SpecialTexts(vocabulary.special_tokens)

    @classmethod
    def from_pretrained(
        cls, path_or_name: str | Path, *, template: str | None = None, trust: bool = False
    ) -> "PromptRenderer":
        """Read a checkpoint's tokenizer and chat template.

        Without ``trust`` none of the checkpoint's code runs: its template is rendered by transformers' own sandbox, the
        tools' keys sorted at every depth as Kimi's tokenizers sort them. K2.5 and later declare tools in TypeScript,
        which only their code writes: with ``trust``, as the server does; without it, in their template's JSON form.

        Args:
            path_or_name: A directory; with ``trust`` also a model name.
            template: Jinja text to use instead of the checkpoint's.
            trust: Whether ``transformers`` may run the checkpoint's own tokenizer code.

        Raises:
            FormatMismatch: There is no Kimi tokenizer, or no chat template.
        """
        if trust:
            loaded = tokenizer_files.resolve(str(path_or_name), None, trust=True)
            return cls.from_tokenizer(loaded, template=template)
        vocabulary = Vocabulary.from_pretrained(path_or_name)
        return cls.from_template(_template_in(Path(path_or_name)) if template is None else template, vocabulary)

    @classmethod
    def from_template(cls, template: str, vocabulary: Vocabulary) -> "PromptRenderer":
        """Use a template's Jinja text, in transformers' sandbox."""
        return cls(vocabulary, lambda messages, tools, **variables: _jinja(template, messages, tools, variables))

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, *, template: str | None = None) -> "PromptRenderer":
        """Use a loaded ``transformers`` tokenizer and its ``apply_chat_template``.

        Raises:
            FormatMismatch: It is not Kimi's.
        """
        chosen = {} if template is None else {"chat_template": template}

        def apply(messages: Any, tools: Any, **variables: Any) -> Any:
            return tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, **chosen, **variables)

        return cls(Vocabulary.from_tokenizer(tokenizer), apply)

    def render(self, body: object, *, repair: bool = True) -> RenderedPrompt:
        """Make the prompt of a chat-completions request.

        Read are ``messages``, ``tools``, ``chat_template_kwargs``, ``thinking`` (a boolean, or Moonshot's
        ``{"type": "disabled"}``), ``add_generation_prompt`` and ``continue_final_message``.

        Args:
            body: The decoded body.
            repair: Whether to mend it first, and to see to the generation prompt.

        Raises:
            InvalidRequest: The body is not one that can be mended, or the template refuses it.
        """
        mended, repairs = repair_messages(body, specials=self._specials)
        if not repair:
            assert isinstance(body, Mapping)  # else it could not have been mended
            mended, repairs = dict(body), []
        continued = bool(mended.get("continue_final_message"))
        generate = mended.get("add_generation_prompt", True) is not False and not continued
        variables = template_variables(mended)
        try:
            text = self._template(
                mended["messages"],
                mended.get("tools") or None,
                add_generation_prompt=generate,
                continue_final_message=continued,
                **variables,
            )
        except Exception as error:  # templates raise whatever their expressions raise
            raise InvalidRequest(f"the chat template refuses it: {error}", "messages") from error
        if repair and generate and not _OPEN_TURN.search(text, max(0, len(text) - 200)):
            repairs.append(Repair("prompt", "prompt", None, GENERATION_PROMPT))
            text += GENERATION_PROMPT
        return RenderedPrompt(text, tuple(self.tokenize(text)), tuple(repairs), mended)

    def tokenize(self, text: str) -> list[int]:
        """The ids of a prompt's text, special tokens recognised wherever they are spelled, as servers do.

        Raises:
            InvalidRequest: It holds a lone surrogate.
        """
        ids: list[int] = []
        for piece, special in self._specials.split(text):
            ids += [self.vocabulary.special_tokens[piece]] if special else self.vocabulary.encode(piece)
        return ids


def render_prompt(
    body: object, tokenizer: Any, *, template: str | None = None, repair: bool = True, trust: bool = False
) -> RenderedPrompt:
    """Messages and tools as a checkpoint's prompt, mended where they need it.

    Args:
        body: A chat-completions request body; see :meth:`PromptRenderer.render`.
        tokenizer: The checkpoint: a directory, a loaded ``transformers`` tokenizer, or (for many prompts, as reading a
            tokenizer takes a second) a :class:`PromptRenderer`.
        template: Jinja text to use instead of the checkpoint's; not with a :class:`PromptRenderer`.
        repair: Whether to mend the request first; see :func:`constrained_k2.rendering.repair_messages`.
        trust: Whether the checkpoint's own tokenizer code may run.

    Raises:
        InvalidRequest: The body has no clear meaning, or the template refuses it.
        FormatMismatch: There is no Kimi tokenizer, or no chat template.
    """
    if isinstance(tokenizer, PromptRenderer):
        renderer = tokenizer
    elif isinstance(tokenizer, str | Path):
        renderer = PromptRenderer.from_pretrained(tokenizer, template=template, trust=trust)
    else:
        renderer = PromptRenderer.from_tokenizer(tokenizer, template=template)
    return renderer.render(body, repair=repair)


def _jinja(template: str, messages: Any, tools: Any, variables: Mapping[str, Any]) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    tools = None if tools is None else [_sorted(tool) for tool in tools]
    (text,), _ = render_jinja_template([messages], tools=tools, chat_template=template, **variables)
    return str(text)


def _sorted(value: Any) -> Any:
    """The value with the keys of every object in it sorted."""
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


def template_variables(body: Mapping[str, Any]) -> dict[str, Any]:
    """The template's own variables in a request: ``chat_template_kwargs``, and Moonshot's ``thinking``.

    Raises:
        InvalidRequest: They are none.
    """
    place = "chat_template_kwargs"
    given = body.get(place)
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        raise InvalidRequest(f"must be an object, not {kind_of_json(given)}", place)
    if taken := sorted(_OURS & given.keys()):
        raise InvalidRequest(f"{taken[0]!r} is no variable of a template", f"{place}.{taken[0]}", "Leave it out")
    thinking = stated_thinking(body)
    return {**given} if thinking is None else {**given, "thinking": thinking}


def _template_in(directory: Path) -> str:
    """The chat template in a checkpoint's directory, in any of the places where transformers looks for it."""
    file = directory / "chat_template.jinja"
    try:
        if file.is_file():
            return file.read_text(encoding="utf-8")
        for name in ("chat_template.json", "tokenizer_config.json"):
            if (directory / name).is_file():
                config = json.loads((directory / name).read_text(encoding="utf-8"))
                found = config.get("chat_template") if isinstance(config, dict) else None
                if isinstance(found, list):  # several, by name
                    found = next((entry["template"] for entry in found if entry["name"] == "default"), None)
                if isinstance(found, str):
                    return found
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FormatMismatch(f"its chat template cannot be read: {error}", str(directory)) from error
    raise FormatMismatch("holds no chat template", str(directory), "Give one as a file")
