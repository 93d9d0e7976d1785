"""Refuses half a UTF-16 character (a lone surrogate) in the fields that vLLM sends to its engine core.

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
    *("kv_transfer_params", "ec_transfer_params", "chat_template_kwargs", "documents"),
)
"""The fields whose strings vLLM sends to the engine core."""

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
        if isinstance(given, dict) and name in model.model_fields and name in given:
            for location, text in _strings(given[name], name):
                if _SURROGATE.search(text):
                    where = location.encode(errors="backslashreplace").decode()
                    raise InvalidRequest(
                        "has half a UTF-16 character (a lone surrogate)", where, "Send all of it, or leave it out"
                    )


def _strings(value: Any, location: str) -> Iterator[tuple[str, str]]:
    """The strings in a JSON value, keys included, with their locations."""
    left = [(location, value)]
    while left:
        location, value = left.pop()
        if isinstance(value, str):
            yield location, value
        elif isinstance(value, list):
            left += [(f"{location}[{number}]", item) for number, item in enumerate(value)]
        elif isinstance(value, dict):
            left += [(f"{location}.{key}", each) for key, item in value.items() for each in (key, item)]
