"""Arms as the command line names them."""

import json

import pytest

from constrained_k2.errors import InvalidRequest
from constrained_k2.evaluation.ab.arms import parse_arm
from constrained_k2.evaluation.ab.runner import Endpoint, Limits


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nope", "unknown preset"), ("plain", "unknown preset"), ("a={", "not JSON"), ("a={}", "malformed address"),
        ("a=localhost:8000", "malformed address"), ('a={"url": 7}', "got `int` - at `\\$.url`"), ("../a=http://x", "malformed name"),
        ('a={"url": "http://x", "body": []}', "Expected `object`"), ('a={"url": "http://x", "key": "k"}', "unknown fields"),
        ('a={"url": "http://x", "preset": "best"}', "unknown preset"),
    ],
)  # fmt: skip
def test_arms_that_are_none(text: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        parse_arm(text)


def test_arms(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_arm("xgrammar", "http://x/v1").url == "http://x"
    assert parse_arm("constrained=http://y").is_constrained
    assert not parse_arm("stock=http://y").is_constrained
    arm = parse_arm('m={"url": "http://m", "model": "k", "api_key_env": "M_KEY", "body": {"top_p": 1}}')
    assert arm.added == {"top_p": 1}
    with pytest.raises(InvalidRequest, match="the environment variable 'M_KEY' is not set"):
        Endpoint(arm, Limits())
    monkeypatch.setenv("M_KEY", "secret")
    Endpoint(arm, Limits())
    assert "secret" not in json.dumps(arm.identity)
