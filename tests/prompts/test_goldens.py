"""Prompts as public copies of Kimi's templates render them, reproduced byte for byte, and the faulty ones found; ``render_prompt``.

The templates in templates/ were written from the goldens. The goldens test that nothing between a request and its
template changes a byte, and that the fault checks find exactly the faults that are there.
"""

from pathlib import Path
from typing import Any

import pytest

import constrained_k2
from constrained_k2 import FormatMismatch, InvalidRequest, ToolCallSpec, Vocabulary, find_faults, render_prompt
from constrained_k2.prompts import PromptRenderer
from constrained_k2.testing import write_tokenizer
from tests.kit.data import rendered as goldens

TEMPLATES = Path(__file__).parent / "templates"
TEST_TEMPLATE = Path(constrained_k2.__file__).parent / "testing" / "chat_template.jinja"
RIGHT = {
    "k2_thinking": TEMPLATES / "k2_thinking.jinja",
    "k2_5_json_thinking": TEMPLATES / "k2_5.jinja",
    "k2_5_json_instant": TEMPLATES / "k2_5.jinja",
    "k2_instruct_after_fix_reconstructed": TEST_TEMPLATE,
}
BEFORE_FIX = "k2_instruct_0905_before_fix"
IDS_TO_REPAIR = {"bad_ids", "short_id"}


def body(golden: dict[str, Any]) -> dict[str, Any]:
    return golden["request"] | {"chat_template_kwargs": golden["chat_template_kwargs"]}


@pytest.mark.parametrize("name", [*RIGHT, BEFORE_FIX])
def test_the_template_alone(name: str, small_vocabulary: Vocabulary) -> None:
    path = RIGHT.get(name, TEMPLATES / "k2_instruct_before_fix.jinja")
    renderer = template_renderer(path, small_vocabulary)
    for golden in goldens(name):
        request = body(golden) | {"add_generation_prompt": golden["add_generation_prompt"]}
        assert renderer.render(request, repair=False).text == golden["text"], golden["case"]


@pytest.mark.parametrize("name", RIGHT)
def test_right_goldens_are_reproduced_and_nothing_is_found_in_them(name: str, small_vocabulary: Vocabulary) -> None:
    renderer = template_renderer(RIGHT[name], small_vocabulary)
    for golden in goldens(name):
        if not golden["add_generation_prompt"]:
            assert [f.kind for f in find_faults(golden["text"], golden["request"])][:1] == ["generation prompt"]
            continue
        rendered = renderer.render(body(golden))
        faults = {fault.kind for fault in find_faults(golden["text"], golden["request"])}
        if golden["case"] in IDS_TO_REPAIR:
            assert faults == {"call id"}
            assert {repair.kind for repair in rendered.repairs} == {"call id", "result id"}
            assert not find_faults(rendered.text, rendered.body)
        else:
            assert rendered.text == golden["text"]
            assert not faults
            list_content = golden["case"] == "round_trip_list_content"  # the body is repaired, the prompt is the same
            assert [repair.kind for repair in rendered.repairs] == ["content"] * (2 * list_content)


def test_goldens_before_the_fix_are_found_faulty() -> None:
    same_as_after = {"plain", "system"}  # with a generation prompt these two have no fault at all
    right = {(g["case"], g["add_generation_prompt"]): g["text"] for g in goldens("k2_instruct_after_fix_reconstructed")}
    for golden in goldens(BEFORE_FIX):
        for request in (golden["request"], None):
            faults = {fault.kind for fault in find_faults(golden["text"], request)}
            if golden["add_generation_prompt"] and golden["case"] in same_as_after:
                assert golden["text"] == right[golden["case"], True]
                assert not faults
                continue
            assert faults
            assert ("blanks" in faults) == ("tools" in golden["request"])
            assert ("generation prompt" in faults) == (not golden["add_generation_prompt"])
            assert ("content list" in faults) == (golden["case"] == "round_trip_list_content")
            assert ("call id" in faults) == (golden["case"] in IDS_TO_REPAIR)


def test_repairs_make_right_even_under_the_old_template(small_vocabulary: Vocabulary) -> None:
    renderer = template_renderer(TEMPLATES / "k2_instruct_before_fix.jinja", small_vocabulary)
    for golden in goldens(BEFORE_FIX):
        rendered = renderer.render(body(golden))
        faults = find_faults(rendered.text, rendered.body)
        assert {fault.kind for fault in faults} <= {
            "blanks"
        }  # the template's own, which no change of a request can repair


def test_the_same_faults_in_ids(real_vocabulary: Vocabulary) -> None:
    renderer = template_renderer(RIGHT["k2_thinking"], real_vocabulary)
    for golden in goldens("k2_thinking") + goldens(BEFORE_FIX):
        ids = renderer.tokenize(golden["text"])
        assert real_vocabulary.decode(ids) == golden["text"]
        found = find_faults(ids, golden["request"], vocabulary=real_vocabulary)
        assert found == find_faults(golden["text"], golden["request"])


def template_renderer(path: Path, vocabulary: Vocabulary) -> PromptRenderer:
    return PromptRenderer.from_template(path.read_text(encoding="utf-8"), vocabulary)


BODY = {
    "messages": [{"role": "user", "content": "hi [EOS]"}, {"role": "assistant", "content": "So"}],
    "tools": [{"type": "function", "function": {"name": "f", "strict": True, "description": "</think>"}}],
}


def test_a_directory_a_loaded_tokenizer_and_a_renderer_make_the_same(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    write_tokenizer(tmp_path)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=True)
    first = render_prompt(BODY, tmp_path)
    assert first == render_prompt(BODY, str(tmp_path), trust=True) == render_prompt(BODY, loaded)
    assert first == render_prompt(BODY, PromptRenderer.from_pretrained(tmp_path))
    assert list(first.ids) == loaded.encode(first.text, add_special_tokens=False)
    assert [repair.kind for repair in first.repairs] == ["tool", "special token", "special token"]
    template = (TEMPLATES / "k2_5.jinja").read_text()
    assert render_prompt(BODY, tmp_path, template=template) == render_prompt(BODY, loaded, template=template)


def test_thinking_and_a_continued_message(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    renderer = PromptRenderer.from_pretrained(tmp_path, template=(TEMPLATES / "k2_5.jinja").read_text())
    for fields, end in (
        ({}, "<|im_middle|><think>"),
        ({"thinking": True}, "<|im_middle|><think>"),
        ({"thinking": {"type": "disabled"}}, "<|im_middle|><think></think>"),
        ({"chat_template_kwargs": {"thinking": False}}, "<|im_middle|><think></think>"),
        ({"chat_template_kwargs": {"thinking": True}, "thinking": False}, "<|im_middle|><think></think>"),
        ({"continue_final_message": True}, "<|im_middle|><think></think>So"),
    ):
        rendered = render_prompt(BODY | fields, renderer)
        assert rendered.text.endswith(end)
        if "continue_final_message" not in fields:
            spec = ToolCallSpec.from_openai(rendered.body, thinking=True)
            assert spec.thinking == end.endswith("<think>"), "masks and prompt disagree"
        assert not find_faults(rendered.text, rendered.body)


def test_no_tokenizer_and_a_template_that_refuses(tmp_path: Path) -> None:
    with pytest.raises(FormatMismatch):
        render_prompt(BODY, tmp_path)
    write_tokenizer(tmp_path)
    with pytest.raises(InvalidRequest, match="messages: the chat template refuses it: not so"):
        render_prompt(BODY, tmp_path, template="{{ raise_exception('not so') }}")
