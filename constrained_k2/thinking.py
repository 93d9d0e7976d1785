"""Whether a request lets the model reason, in the forms in which clients say so."""

from collections.abc import Mapping
from typing import Any

from constrained_k2.errors import InvalidRequest, kind_of_json


def stated_thinking(body: Mapping[str, Any]) -> bool | None:
    """The request's own ``thinking``: a boolean, or Moonshot's ``{"type": "enabled"}``; None where it has none.

    It goes before what ``chat_template_kwargs`` says of the same.

    Raises:
        InvalidRequest: It is neither.
    """
    value = body.get("thinking")
    if isinstance(value, Mapping):
        if value.get("type") not in ("enabled", "disabled"):
            raise InvalidRequest("must be 'enabled' or 'disabled'", "thinking.type")
        return bool(value["type"] == "enabled")
    return _switch(value, "thinking")


def read_thinking(body: Mapping[str, Any]) -> bool | None:
    """Whether the model may reason, by ``thinking`` or else by the template's variable; None where neither says.

    Raises:
        InvalidRequest: One of them is no boolean.
    """
    stated = stated_thinking(body)
    variables = body.get("chat_template_kwargs")
    if stated is not None or not isinstance(variables, Mapping):
        return stated
    return _switch(variables.get("thinking", variables.get("enable_thinking")), "chat_template_kwargs.thinking")


def _switch(value: object, place: str) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    raise InvalidRequest(f"must be a boolean, not {kind_of_json(value)}", place)
