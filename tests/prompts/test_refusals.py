"""Requests that are refused, with the place of what is wrong: by repairs, by Kimi K3's renderer, and by its contract."""

from collections.abc import Callable
from typing import Any

import pytest

from constrained_k2 import InvalidRequest, repair_messages
from constrained_k2.prompts.xtml import XtmlRenderer, check_contract
from tests.kit.data import table
from tests.prompts.kimi_k3 import BYTES

RENDERER = XtmlRenderer(BYTES)


TABLE: dict[str, list[Any]] = table(__file__)
"""Bodies that repairs, Kimi K3's renderer and its contract refuse, with the location; and bodies in the contract."""


@pytest.mark.parametrize(
    ("refusing", "body", "location"),
    [*((repair_messages, *row) for row in TABLE["repair"]), *((check_contract, *row) for row in TABLE["contract"]),
     *((RENDERER.render, *row) for row in TABLE["render"] + TABLE["contract"])],
    ids=lambda value: value.__name__ if callable(value) else None,
)  # fmt: skip
def test_refusals(refusing: Callable[[Any], Any], body: Any, location: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        refusing(body)
    assert refused.value.location == location
    assert refused.value.problem


@pytest.mark.parametrize("body", TABLE["in the contract"])
def test_requests_in_the_contract(body: dict[str, Any]) -> None:
    check_contract(body)
