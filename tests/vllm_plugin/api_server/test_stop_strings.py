"""Stop strings end texts alone: not the reasoning, and no call. vLLM's own detokenizers, without a server."""

import json
import random
from types import SimpleNamespace
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.v1.engine.detokenizer import IncrementalDetokenizer

from constrained_k2 import ToolCall, Vocabulary, parse_completion, render_tool_calls
from constrained_k2.vllm_plugin.api_server.stop_strings import TextTokens
from constrained_k2.vllm_plugin.shared.flags import XARGS_KEY
from tests.parsing.transcripts import encoded, ids_of_text, random_parts, random_turn, written
from tests.vllm_plugin.parsers import TOOL

CONSTRAINT = {XARGS_KEY: json.dumps({"tools": [TOOL]})}


def assert_text(ids: list[int], vocabulary: Vocabulary, prompt: list[int]) -> str:
    """The tokens of the text decode to what the parser reports as content; return it."""
    tokens = TextTokens(vocabulary, prompt)
    text = b"".join(vocabulary.token_bytes(token_id) for token_id in ids if tokens.is_text(token_id))
    parsed = parse_completion(ids, vocabulary, in_reasoning=vocabulary.opens_reasoning(prompt))
    assert text.decode() == parsed.content
    return parsed.content


def test_tokens_of_the_text_are_those_of_the_content(vocabulary: Vocabulary, k3_vocabulary: Vocabulary) -> None:
    chance, texts, texts_of_k3 = random.Random(4), 0, 0
    k3_opening = ids_of_text("<|open|>think<|sep|>", k3_vocabulary)
    for _ in range(200):
        ids = encoded(random_parts(chance), vocabulary)
        texts += bool(assert_text(ids, vocabulary, [1]))
        opened = [*vocabulary.encode("Hm 北"), vocabulary.format.think_end, *ids]
        assert_text(opened, vocabulary, [1, vocabulary.format.think_begin])
        turn = random_turn(chance)
        prompt = [1] if turn.reasoning is None else k3_opening
        texts_of_k3 += bool(assert_text(encoded(written(turn), k3_vocabulary), k3_vocabulary, prompt))
    assert texts > 100 and texts_of_k3 > 100
    assert k3_vocabulary.opens_reasoning(k3_opening)


def detokenized(
    tokenizer: Any, ids: list[int], prompt: list[int], size: int, extra: dict[str, Any] | None, **params: Any
) -> tuple[str, str | None, int]:
    """vLLM's text of tokens that come ``size`` at a time, the stop string that ended it, and the tokens kept."""
    sampling = SamplingParams(
        skip_special_tokens=False, spaces_between_special_tokens=False, extra_args=extra, **params
    )
    asked: Any = SimpleNamespace(request_id="", sampling_params=sampling, prompt_token_ids=prompt, prompt_embeds=None)
    detokenizer = IncrementalDetokenizer.from_new_request(tokenizer, asked)
    text, stop = "", None
    for start in range(0, len(ids), size):
        stop = detokenizer.update(ids[start : start + size], False)
        text += detokenizer.get_next_output_text(stop is not None or start + size >= len(ids), delta=True)
        if stop is not None:
            break
    return text, stop, detokenizer.num_output_tokens()


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize("opened", [False, True], ids=["the model opens its reasoning", "the prompt does"])
def test_a_stop_string_is_found_in_the_text_alone(
    tokenizer: Any, vocabulary: Vocabulary, opened: bool, size: int
) -> None:
    markers = vocabulary.format
    before, opening = ([1, markers.think_begin], []) if opened else ([1], [markers.think_begin])
    reasoning = [*opening, *vocabulary.encode("An END 北京"), markers.think_end]
    call = render_tool_calls([ToolCall("f", 0, '{"a": "END"}')], vocabulary)
    text, rest = vocabulary.encode("It is 北京. "), vocabulary.encode("The END of it")
    whole = vocabulary.decode([*reasoning, *text])
    ended = detokenized(tokenizer, [*reasoning, *text, *rest], before, size, CONSTRAINT, stop=["x", "END"])
    assert ended[:2] == (f"{whole}The ", "END")
    assert len(reasoning) + len(text) < ended[2] < len([*reasoning, *text, *rest])
    stops = {"stop": ["END"], "include_stop_str_in_output": True}
    shown = detokenized(tokenizer, [*reasoning, *text, *rest], before, size, CONSTRAINT, **stops)
    assert shown[:2] == (f"{whole}The END", "END")
    calling = [*reasoning, *text, *call]
    for stop in (["END"], ["f:0", '"a"', "京</think>It", "京<", ">It", "It is 北京. <|tool_calls_section_begin|>"]):
        assert detokenized(tokenizer, calling, before, size, CONSTRAINT, stop=stop) == (
            vocabulary.decode(calling), None, len(calling)
        )  # fmt: skip


@pytest.mark.parametrize("extra", [None, {}, {XARGS_KEY: "on"}, {XARGS_KEY: "off"}])
def test_a_request_without_a_constraint_has_vllms_own_detokenizer(
    tokenizer: Any, vocabulary: Vocabulary, extra: dict[str, Any] | None
) -> None:
    ids = [vocabulary.format.think_begin, *vocabulary.encode("An END of it")]
    assert detokenized(tokenizer, ids, [1], 1, extra, stop=["END"])[:2] == ("<think>An ", "END")
