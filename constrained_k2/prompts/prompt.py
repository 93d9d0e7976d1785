"""Renders requests with the checkpoint's own chat template, and tool calls as token ids."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from constrained_k2.errors import FormatMismatch, InvalidRequest, MalformedCompletion
from constrained_k2.formats.kimi_k2 import GENERATION_PROMPT, OPEN_TURN
from constrained_k2.prompts.rendered import RenderedPrompt
from constrained_k2.prompts.repair import repair_messages
from constrained_k2.prompts.special_text import SpecialTexts
from constrained_k2.prompts.text_repairs import Repair
from constrained_k2.prompts.xtml.prompt import XtmlRenderer
from constrained_k2.prompts.xtml.turn import render_calls
from constrained_k2.request.spec import ToolCall, stated_thinking
from constrained_k2.request.values import object_at
from constrained_k2.vocabulary import tokenizer_files
from constrained_k2.vocabulary.vocabulary import Vocabulary

_OPEN_TURN = re.compile(rf"{OPEN_TURN}\s*\Z")
# Arguments of ``apply_chat_template``, which a template's variables must not replace.
_ARGUMENTS = {"messages", "conversation", "tools", "chat_template", "tokenize"}
_ARGUMENTS |= {"add_generation_prompt", "continue_final_message"}

Template = Callable[..., Any]  # (messages, *, tools, **variables) -> text


class Renderer(Protocol):
    """Renders requests for one checkpoint."""

    vocabulary: Vocabulary

    def render(self, body: object, *, repair: bool = True) -> RenderedPrompt:
        """Render a decoded chat-completions request, repaired unless ``repair`` is false."""


class PromptRenderer:
    """Renders requests with the vocabulary and the chat template of one checkpoint."""

    def __init__(self, vocabulary: Vocabulary, template: Template) -> None:
        self.vocabulary = vocabulary
        self._template = template
        self._specials = SpecialTexts(vocabulary.special_tokens)

    @classmethod
    def from_pretrained(
        cls, path_or_name: str | Path, *, template: str | None = None, trust: bool = False
    ) -> "PromptRenderer":
        """Read a checkpoint's tokenizer and chat template.

        Without ``trust`` no code of the checkpoint runs: transformers' sandbox renders its template, or the Jinja text
        given, with the tools' keys sorted at every depth as Kimi's tokenizers sort them. K2.5 and later declare tools
        in TypeScript, which only the checkpoint's code can write; without ``trust`` their tools appear in the
        template's JSON form. With it, the checkpoint may also be a model name.
        """
        if trust:
            loaded = tokenizer_files.resolve(str(path_or_name), None, trust=True)
            return cls.from_tokenizer(loaded, template=template)
        vocabulary = Vocabulary.from_pretrained(path_or_name)
        return cls.from_template(_template_in(Path(path_or_name)) if template is None else template, vocabulary)

    @classmethod
    def from_template(cls, template: str, vocabulary: Vocabulary) -> "PromptRenderer":
        """Use a template's Jinja text, in transformers' sandbox."""
        return cls(vocabulary, partial(_jinja, template))

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, *, template: str | None = None) -> "PromptRenderer":
        """Use a loaded ``transformers`` tokenizer and its ``apply_chat_template``."""
        chosen = {} if template is None else {"chat_template": template}
        apply = partial(tokenizer.apply_chat_template, tokenize=False, **chosen)
        return cls(Vocabulary.from_tokenizer(tokenizer), apply)

    def render(self, body: object, *, repair: bool = True) -> RenderedPrompt:
        """Render a decoded chat-completions request.

        The fields used are ``messages``, ``tools``, ``chat_template_kwargs``, ``thinking`` (a boolean, or Moonshot's
        ``{"type": "disabled"}``), ``add_generation_prompt`` and ``continue_final_message``. Without ``repair`` the
        request is rendered as it is, and no generation prompt is added.
        """
        repaired, repairs = repair_messages(body, specials=self._specials)
        if not repair:
            assert isinstance(body, Mapping)  # checked by repair_messages
            repaired, repairs = dict(body), []
        continued = bool(repaired.get("continue_final_message"))
        generate = repaired.get("add_generation_prompt", True) is not False and not continued
        variables = template_variables(repaired)
        variables |= {"add_generation_prompt": generate, "continue_final_message": continued}
        try:
            text = self._template(repaired["messages"], tools=repaired.get("tools") or None, **variables)
        except Exception as error:  # templates raise whatever their expressions raise
            raise InvalidRequest(f"the chat template refuses it: {error}", "messages") from error
        if repair and generate and not _OPEN_TURN.search(text, max(0, len(text) - 200)):
            repairs.append(Repair("prompt", "prompt", None, GENERATION_PROMPT))
            text += GENERATION_PROMPT
        return RenderedPrompt(text, tuple(self.tokenize(text)), tuple(repairs), repaired)

    def tokenize(self, text: str) -> list[int]:
        """Tokenize a prompt as servers do: every spelling of a special token becomes that token."""
        return self._specials.encode(text, self.vocabulary)


def prompt_renderer(tokenizer: Any, *, template: str | None = None, trust: bool = False) -> Renderer:
    """Return the renderer of a checkpoint's prompts, by its chat template or, for Kimi K3, by this package.

    The arguments are documented at :func:`render_prompt`.

    Raises:
        FormatMismatch: The tokenizer is not Kimi's, or there is no chat template, or one is given for Kimi K3.
    """
    if isinstance(tokenizer, PromptRenderer | XtmlRenderer):
        return tokenizer
    is_path = isinstance(tokenizer, str | Path)
    loaded = tokenizer_files.resolve(str(tokenizer), None, trust=True) if is_path and trust else tokenizer
    is_loaded = trust or not is_path
    vocabulary = Vocabulary.from_tokenizer(loaded) if is_loaded else Vocabulary.from_pretrained(tokenizer)
    if vocabulary.format.argument_encoding == "xtml":
        if template is not None:
            raise FormatMismatch("Kimi K3's prompts are not rendered by a chat template", "template", "Leave it out")
        return XtmlRenderer(vocabulary)
    if is_loaded:
        return PromptRenderer.from_tokenizer(loaded, template=template)
    return PromptRenderer.from_template(_template_in(Path(tokenizer)) if template is None else template, vocabulary)


def render_prompt(
    body: object, tokenizer: Any, *, template: str | None = None, repair: bool = True, trust: bool = False
) -> RenderedPrompt:
    """Render messages and tools as a checkpoint's prompt, and repair them first if needed.

    ``tokenizer`` is a checkpoint's directory, a loaded ``transformers`` tokenizer, or a renderer
    (:func:`prompt_renderer`; reading a tokenizer takes a second). The options are as for
    :meth:`PromptRenderer.from_pretrained` and :meth:`PromptRenderer.render`; Kimi K3's prompts are rendered by
    :class:`constrained_k2.prompts.xtml.XtmlRenderer`.

    Raises:
        InvalidRequest: The body has no clear meaning, or the template refuses it.
        FormatMismatch: The tokenizer is not Kimi's, or there is no chat template.
    """
    return prompt_renderer(tokenizer, template=template, trust=trust).render(body, repair=repair)


def render_tool_calls(calls: Iterable[ToolCall], vocabulary: Vocabulary) -> list[int]:
    """Render a tool-calls section as the model writes it: the inverse of :func:`constrained_k2.parse_completion`.

    The ids have no stop, and are empty for no calls. Special-token text inside arguments is encoded as ordinary tokens,
    so that it parses back unchanged. For Kimi K3 they begin with the end of the response, which comes before every
    section, and calls are numbered from 1.

    Raises:
        MalformedCompletion: The format has no such name or index, or the arguments contain a lone surrogate.
    """
    markers = vocabulary.format
    if vocabulary.format.argument_encoding == "xtml":
        return render_calls(calls, vocabulary)
    ids: list[int] = []
    for number, call in enumerate(calls):
        try:
            header, arguments = vocabulary.encode(call.id), vocabulary.encode(call.arguments)
        except InvalidRequest as error:
            raise MalformedCompletion(error.problem, f"calls[{number}]", "Use a name and JSON text") from error
        ids += [markers.call_begin, *header, markers.argument_begin, *arguments, markers.call_end]
    return [markers.section_begin, *ids, markers.section_end] if ids else []


def _jinja(template: str, messages: Any, /, tools: Any, **variables: Any) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    tools = None if tools is None else json.loads(json.dumps(tools, sort_keys=True))
    (text,), _ = render_jinja_template([messages], tools=tools, chat_template=template, **variables)
    return str(text)


def template_variables(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the template variables of a request: ``chat_template_kwargs``, and Moonshot's ``thinking``."""
    location = "chat_template_kwargs"
    given = body.get(location)
    given = {} if given is None else object_at(location, given)
    if taken := sorted(_ARGUMENTS & given.keys()):
        raise InvalidRequest(f"{taken[0]!r} is not a template variable", f"{location}.{taken[0]}", "Leave it out")
    thinking = stated_thinking(body)
    return given if thinking is None else {**given, "thinking": thinking}


def _template_in(directory: Path) -> str:
    """Read a checkpoint's chat template from any of the files where transformers looks for it."""
    try:
        if (directory / "chat_template.jinja").is_file():
            return (directory / "chat_template.jinja").read_text(encoding="utf-8")
        for name in ("chat_template.json", "tokenizer_config.json"):
            if (directory / name).is_file():
                found = json.loads((directory / name).read_text(encoding="utf-8")).get("chat_template")
                if isinstance(found, list):  # several templates, by name
                    found = next((entry["template"] for entry in found if entry["name"] == "default"), None)
                if isinstance(found, str):
                    return found
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatMismatch(f"the chat template cannot be read: {error}", str(directory)) from error
    raise FormatMismatch("no chat template found", str(directory), "Pass one as a file")
