"""The doctor knows this package by its refusals: the texts that it looks for are those that the package writes."""

from collections.abc import Callable

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from constrained_k2 import InvalidRequest, ToolCallSpec
from constrained_k2.evaluation.doctor.target import _NO_JSON, _OUR_WORDS, _PARSER_WORDS, _SPEC
from constrained_k2.vllm_plugin.api_server.admission import require_route
from constrained_k2.vllm_plugin.api_server.request_hook import constrain_request
from constrained_k2.vllm_plugin.shared.constraint import constraint_in
from constrained_k2.vllm_plugin.shared.flags import XARGS_KEY
from constrained_k2.vllm_plugin.shared.server import Server
from tests.vllm_plugin.parsers import chat


def test_each_refusal_has_one_of_the_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Server, "constrains", False)
    refused: list[Callable[[], object]] = [
        lambda: constrain_request(chat(vllm_xargs=_NO_JSON), thinking=False),
        lambda: constraint_in({XARGS_KEY: "{"}),
        require_route,
    ]
    refusals = []
    for refuse in refused:
        with pytest.raises(InvalidRequest) as error:
            refuse()
        refusals.append(str(error.value))
    every = (*_PARSER_WORDS, *_OUR_WORDS)
    parser, form, route = every
    assert [[words for words in every if words in text] for text in refusals] == [[parser, form], [form], [route]]


def test_the_good_constraint_is_good() -> None:
    assert constraint_in({XARGS_KEY: _SPEC}) == ToolCallSpec.from_json(_SPEC)
