r"""Arguments of the history, shown to the model as they were written.

vLLM reads them as JSON and its template writes them anew: other blanks than the model's own (so its earlier answer is
no longer a prefix that the cache knows), ``{}`` for what is no JSON object, and ``\u005f`` as the ``_`` that completes
a special token. Kimi's templates take the text as well, and then write it as it is.
"""

from contextvars import ContextVar
from functools import wraps
from typing import Any

_OURS = "_constrained_k2"  # marks what is wrapped already

kept: ContextVar[bool] = ContextVar("kept", default=False)
"""Whether the messages at hand are a chat whose arguments are to be left as text."""


def takes_text(template: str | None) -> bool:
    """Whether a chat template tells arguments that are text from such that are an object."""
    return template is not None and "is string" in template


def keep_exact_arguments() -> None:
    """Have vLLM's last step before the template leave arguments alone where :data:`kept` says so."""
    from vllm.renderers import chat_utils

    postprocess = chat_utils._postprocess_messages  # noqa: SLF001 - vLLM has no public place for this
    if hasattr(postprocess, _OURS):
        return

    @wraps(postprocess)
    def with_exact_arguments(messages: list[Any]) -> None:
        taken = _take(messages) if kept.get() else []
        postprocess(messages)
        for function, text in taken:
            function["arguments"] = text

    setattr(with_exact_arguments, _OURS, True)
    chat_utils._postprocess_messages = with_exact_arguments  # noqa: SLF001


def _take(messages: list[Any]) -> list[tuple[dict[str, Any], str]]:
    """The functions called, each with its arguments' text, in whose place ``{}`` is left for vLLM to read."""
    taken: list[tuple[dict[str, Any], str]] = []
    for message in messages:
        calls = message.get("tool_calls") if message["role"] == "assistant" else None
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict) and isinstance(function.get("arguments"), str):
                taken.append((function, function["arguments"]))
                function["arguments"] = "{}"
    return taken
