"""Refuses lone surrogates (half a UTF-16 character) in fields that vLLM sends to its engine core.

vLLM cannot serialize such a string: it answers HTTP 500 without a message, or an error inside a stream. In the
prompt's text it becomes U+FFFD, so a request with a tool result that was cut inside an emoji still works.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from constrained_k2.errors import InvalidRequest
from constrained_k2.vllm_plugin.api_server.refusals import refusals_noted

_SENT = (
    *("stop", "stop_sequences", "bad_words", "vllm_xargs", "request_id", "session_id"),
    *("kv_transfer_params", "ec_transfer_params", "chat_template_kwargs", "documents", "structured_outputs"),
)
"""The fields whose strings vLLM sends to the engine core."""

_MAX_LOCATION = 300  # characters in an error
_SURROGATE = re.compile("[\ud800-\udfff]")
_MAYBE = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")  # in UTF-8; also matches the halves of a valid pair


@refusals_noted()
def refuse_surrogates(body: bytes, model: Any) -> None:
    """Refuse a lone surrogate in a body of a request of this model; a body that is not JSON is vLLM's to refuse.

    Raises:
        InvalidRequest: A field that vLLM sends to the engine core has one.
    """
    if not _MAYBE.search(body) and json.detect_encoding(body) == "utf-8":
        return
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        return
    for name in _SENT:
        if isinstance(given, dict) and name in model.model_fields and name in given and not _is_text(given[name]):
            location = _location(given[name], name)
            if location is not None:
                where = location.encode(errors="backslashreplace").decode()
                raise InvalidRequest(
                    "has half a UTF-16 character (a lone surrogate)", where, "Send all of it, or leave it out"
                )


def _is_text(value: Any) -> bool:
    """Return True if UTF-8 can encode all strings of a JSON value.

    Return False as well if the value is nested too deeply to tell.
    """
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return False
    return True


def _location(value: Any, name: str) -> str | None:
    """Return the location of the first string of a JSON value, keys included, that has a lone surrogate.

    Locations are long if keys are: one is put together only at the end, and is cut.
    """
    names, waiting = list[str](), [iter([(name, value)])]
    while waiting:
        name, item = next(waiting[-1], ("", None))
        if not name:
            waiting.pop()
            del names[-1:]
        elif isinstance(item, str):
            if _SURROGATE.search(item):
                return "".join([*names, name])[:_MAX_LOCATION]
        elif isinstance(item, list | dict):
            names.append(name)
            waiting.append(_parts(item))
    return None


def _parts(value: list[Any] | dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the items of a list, or the keys and values of an object, with their names in a location."""
    if isinstance(value, list):
        yield from ((f"[{number}]", item) for number, item in enumerate(value))
    else:
        yield from ((f".{key}", each) for key, item in value.items() for each in (key, item))
