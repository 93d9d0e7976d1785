"""Tools declared in TypeScript, as the tokenizers of K2.5 and later do: repairs hold there too.

Their encoder is the checkpoint's own code; the one here writes what that one writes for the schemas below:
names bare, descriptions as comments, enums in quotes, arrays in angle brackets.
"""

import json
from typing import Any

import pytest

from constrained_k2 import Vocabulary, find_faults, render_prompt
from constrained_k2.evaluation.doctor.prompt import undue_keys
from constrained_k2.prompts import PromptRenderer
from constrained_k2.prompts.special_text import JOINER
from tests.prompts.test_goldens import TEMPLATES

USER = {"role": "user", "content": "go"}
TEMPLATE = (TEMPLATES / "k2_5.jinja").read_text(encoding="utf-8").replace(
    "{{ tools | tojson(separators=(',', ':')) }}", "{{ tools_ts_str or tools | tojson(separators=(',', ':')) }}"
)  # fmt: skip


def written(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"].split("/")[-1])
    if "enum" in schema:
        return " | ".join(f'"{value}"' for value in schema["enum"])
    if schema.get("type") == "array":
        return f"Array<{written(schema['items'])}>"
    if schema.get("type") == "object":
        return "{\n" + ",\n".join(_property(name, inner) for name, inner in schema["properties"].items()) + "\n}"
    return str(schema["type"])


def _property(name: str, schema: dict[str, Any]) -> str:
    comment = f"  // {schema['description']}\n" if "description" in schema else ""
    default = f"  // Default: {json.dumps(schema['default'], ensure_ascii=False)}\n" if "default" in schema else ""
    return f"{comment}{default}  {name}?: {written(schema)}"


def typescript(tools: list[dict[str, Any]]) -> str:
    lines = ["# Tools", "", "## functions", "namespace functions {"]
    for tool in tools:
        function = tool["function"]
        extra = sorted(function.keys() - {"name", "description", "parameters"})
        lines += [f"// {function['description']}", *(f"// {key}: {function[key]}" for key in extra)]
        schema = function["parameters"]
        lines += [f"interface {name} {written(inner)}" for name, inner in schema.get("$defs", {}).items()]
        lines.append(f"type {function['name']} = (_: {written(schema)}) => any;")
    return "\n".join([*lines, "}", ""])


@pytest.fixture(scope="module")
def renderer(small_vocabulary: Vocabulary) -> PromptRenderer:
    inner = PromptRenderer.from_template(TEMPLATE, small_vocabulary)

    def template(messages: Any, tools: Any, **variables: Any) -> Any:
        return inner._template(messages, tools, tools_ts_str=typescript(tools) if tools else "", **variables)

    return PromptRenderer(small_vocabulary, template)


def tool(text: str) -> dict[str, Any]:
    """A tool with a text wherever the declaration may write it."""
    properties = {
        "plain": {"type": "string", "description": text, "default": text},
        "one": {"enum": [text, "other"]},
        text: {"type": "array", "items": {"enum": [text]}},
        "listed": {"type": "array", "items": {"$ref": f"#/$defs/{text}"}},
        "bare": {"type": "array", "items": {"type": text}},
    }
    definitions = {text: {"type": "object", "properties": {"a": {"type": "string"}}}}
    schema = {"type": "object", "properties": properties, "$defs": definitions}
    return {"type": "function", "function": {"name": "f", "description": text, "parameters": schema, "strict": True}}


def test_no_special_token_in_declarations(renderer: PromptRenderer, small_vocabulary: Vocabulary) -> None:
    def specials(text: str, *, repair: bool = True) -> list[int]:
        ids = render_prompt({"messages": [USER], "tools": [tool(text)]}, renderer, repair=repair).ids
        return [token_id for token_id in ids if small_vocabulary.special_text(token_id) is not None]

    harmless = specials("nothing")
    for text in small_vocabulary.special_tokens:
        for shape in (text, text[1:-1], text[1:], text[:-1]):
            assert specials(shape) == harmless, shape
    # Without repair, an array of a definition called 'think' ends in a special token.
    assert len(specials("think", repair=False)) == len(harmless) + 2
    body = {"messages": [USER], "tools": [tool("think")]}
    faults = find_faults(render_prompt(body, renderer, repair=False).text, body)
    assert [fault.kind for fault in faults] == ["special token"]


def test_names_that_become_no_special_token_are_unchanged(renderer: PromptRenderer) -> None:
    schema = {"type": "object", "properties": {"think": {"type": "string", "enum": ["think"]}, "type": {"$ref": "#"}}}
    body = {"messages": [USER], "tools": [{"type": "function", "function": {"name": "think", "description": "think", "parameters": schema}}]}  # fmt: skip
    assert not render_prompt(body, renderer).repairs


def test_a_definition_and_its_references_are_repaired_alike(renderer: PromptRenderer) -> None:
    rendered = render_prompt({"messages": [USER], "tools": [tool("think")]}, renderer)
    assert f"Array<{JOINER}think>" in rendered.text
    assert f"interface {JOINER}think {{" in rendered.text
    assert '// "think"' not in rendered.text
    assert '// Default: "think"' in rendered.text
    assert not find_faults(rendered.ids, rendered.body, vocabulary=renderer.vocabulary)


def test_keys_outside_a_prompt(renderer: PromptRenderer) -> None:
    body = {"messages": [USER], "tools": [tool("x")]}
    assert undue_keys(typescript(body["tools"])) == ["strict"]
    rendered = render_prompt(body, renderer)
    assert undue_keys(rendered.text) == []
    assert [(repair.location, repair.kind) for repair in rendered.repairs] == [("tools[0].function.strict", "tool")]


def test_images_in_a_dialog(renderer: PromptRenderer) -> None:
    """The template writes a placeholder; the image itself stays out of the prompt."""
    marker = "<|media_begin|>image<|media_content|><|media_pad|><|media_end|>"
    template = TEMPLATE.replace("{{ part.text }}", f"{{{{ '{marker}' if 'image' in part.type else part.text }}}}")
    viewer = PromptRenderer.from_template(template, renderer.vocabulary)
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,[EOS]"}}
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "a<|im_end|>"}, image, {"type": "text", "text": "b"}]}]}  # fmt: skip
    rendered = render_prompt(body, viewer)
    assert f"<|im_user|>user<|im_middle|>a<{JOINER}|im_end|>{marker}b<|im_end|>" in rendered.text
    assert not find_faults(rendered.ids, rendered.body, vocabulary=viewer.vocabulary)
    assert rendered.body["messages"][0]["content"][1] == image
