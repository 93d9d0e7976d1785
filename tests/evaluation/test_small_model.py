"""The small model itself: it is Kimi's shape to others' code too, it copies, and what ships answers held-out requests."""

import json
import re
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, DeepseekV3Config, DeepseekV3ForCausalLM

from constrained_k2 import Vocabulary
from constrained_k2.formats import kimi_k3
from constrained_k2.testing.tokenizer import WireFormatName
from scripts.small_model import training
from scripts.small_model.dialogs import answered_dialogs, drawn_samples
from scripts.small_model.network import Network, Shape
from scripts.small_model.sequences import IGNORED, DialogRenderer, Sequences
from scripts.small_model.serving import write_model
from scripts.small_model.shipped import SMALL_MODELS, build_small_model
from scripts.small_model.start import lay_out_copying
from scripts.small_model.training import RECIPES, Recipe, measure, train_and_write

MOST_BYTES = 8_000_000
# In each format: what opens the assistant's turn, and all that the assistant writes.
TURNS: dict[WireFormatName, str] = {
    "kimi_k2": r"<\|im_assistant\|>assistant<\|im_middle\|>(.*?<\|im_end\|>)",
    "kimi_k3": r'<\|open\|>message role="assistant"<\|sep\|><\|open\|>response<\|sep\|>(.*?<\|end_of_msg\|>)',
}


@pytest.fixture(scope="module", params=list(SMALL_MODELS))
def wire_format(request: pytest.FixtureRequest) -> WireFormatName:
    name: WireFormatName = request.param
    return name


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, wire_format: WireFormatName) -> Path:
    return build_small_model(tmp_path_factory.mktemp("demo") / "model", wire_format)


@pytest.fixture(scope="module")
def vocabulary(model: Path) -> Vocabulary:
    return Vocabulary.from_pretrained(model)


def in_transformers(directory: Path) -> Any:
    fields = json.loads((directory / "config.json").read_bytes())
    fields.pop("model_type")  # transformers has no `kimi_k2`: servers map it to DeepSeek-V3
    model, report = DeepseekV3ForCausalLM.from_pretrained(
        directory, config=DeepseekV3Config(**fields), dtype=torch.float32, output_loading_info=True
    )
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model


@pytest.mark.slow
def test_our_network_is_transformers_deepseek_v3(tmp_path: Path) -> None:
    directory = build_small_model(tmp_path / "model")
    vocabulary = Vocabulary.from_pretrained(directory)
    torch.manual_seed(0)
    network = Network(Shape(vocabulary.size))
    lay_out_copying(network)
    with torch.no_grad():
        network.turn.copy_(torch.eye(128))  # so that the head needs no rounding
        for weight in network.parameters():
            weight.add_(0.02 * torch.randn(weight.shape))
            weight.copy_(weight.bfloat16().float())  # as the file keeps them
        network.turn.copy_(torch.eye(128))
    write_model(directory, network.state_dict(), vocabulary)
    ids = torch.randint(0, vocabulary.size - 256, (2, 300), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        theirs = in_transformers(directory)(ids).logits
        ours = network.logits(network(ids)[0])
    torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-3)


def test_the_start_copies_what_followed_the_last_time() -> None:
    torch.manual_seed(0)
    network = Network(Shape(1400))
    half = torch.randint(0, 1400, (4, 100))
    twice = torch.cat([half, half], 1)
    with torch.no_grad():
        before = network.logits(network(twice)[0])[:, 100:-1].argmax(-1)
        lay_out_copying(network)
        after = network.logits(network(twice)[0])[:, 100:-1].argmax(-1)
    assert (before == twice[:, 101:]).float().mean() < 0.05
    assert (after == twice[:, 101:]).float().mean() > 0.5


def test_what_the_assistant_writes_is_marked(vocabulary: Vocabulary, wire_format: WireFormatName) -> None:
    sequences = Sequences(vocabulary)
    for dialog in islice(answered_dialogs(9, held_out=False), 20):
        ids, written = sequences.of(dialog)
        text = vocabulary.decode(ids)
        said = re.findall(TURNS[wire_format], text, re.DOTALL)
        assert len(said) == sum(message["role"] == "assistant" for message in dialog["messages"])
        assert vocabulary.decode(token for token, mine in zip(ids, written, strict=True) if mine) == "".join(said)
    ids, targets = next(sequences.batches(answered_dialogs(9, held_out=False), 4, 2000))
    marked = targets != IGNORED
    assert (targets[:, :-1][marked[:, :-1]] == ids[:, 1:][marked[:, :-1]]).all()
    assert marked.any(1).all()


def test_prompts_are_those_of_the_shipped_tokenizer(
    model: Path, vocabulary: Vocabulary, wire_format: WireFormatName
) -> None:
    """A server renders with the tokenizer's class; training must show the same tokens."""
    tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=True)
    renderer = DialogRenderer(vocabulary)
    options = SMALL_MODELS[wire_format].fields.get("chat_template_kwargs", {})
    for sample in drawn_samples(20, seed=1):
        dialog = {"messages": sample["messages"], "tools": sample["tools"]}
        for opens in (False, True):
            ids = tokenizer.apply_chat_template(
                dialog["messages"], dialog["tools"], add_generation_prompt=opens, return_dict=False, **options
            )
            assert list(renderer.render(dialog, opens_answer=opens).ids) == list(ids)


@pytest.mark.parametrize("value", ["Oslo", "Bratalin", "design", "2026-03-14", "A-104", "DO4821", "ana", "249.95"])
def test_a_value_is_the_same_tokens_wherever_it_stands(vocabulary: Vocabulary, value: str) -> None:
    alone = vocabulary.encode(value)
    for before, after in (("", ""), (" ", "."), ('":"', '"}'), ('["', '","'), (" ", ", and")):
        ids = vocabulary.encode(before + value + after)
        assert any(ids[start : start + len(alone)] == alone for start in range(len(ids))), before


def test_what_ships_is_small_and_complete(model: Path, wire_format: WireFormatName) -> None:
    assert sum(path.stat().st_size for path in SMALL_MODELS[wire_format].checkpoint.iterdir()) < MOST_BYTES
    in_transformers(model)
    log = (SMALL_MODELS[wire_format].checkpoint / "training.jsonl").read_text()
    first, *rows = (json.loads(line) for line in log.splitlines())
    assert first == asdict(RECIPES[wire_format])
    assert rows[-1]["step"] == first["steps"]


def test_tags_are_the_tokens_of_the_real_vocabulary(tmp_path: Path) -> None:
    vocabulary = Vocabulary.from_pretrained(build_small_model(tmp_path, "kimi_k3"))
    tags = (kimi_k3.MESSAGE, kimi_k3.RESPONSE, kimi_k3.TOOLS, kimi_k3.CALL, kimi_k3.ARGUMENT)
    words = {*kimi_k3.VALUE_TYPES.values()} - {"null"}  # no value of its tools is null
    for piece in (*tags, *words, " role", " tool", " index", " key", " type", '="', '"'):
        assert len(vocabulary.encode(piece)) == 1, piece


@pytest.mark.slow
def test_what_ships_foresees_held_out_answers(model: Path, vocabulary: Vocabulary, wire_format: WireFormatName) -> None:
    served, dialogs = in_transformers(model), answered_dialogs(123, held_out=True)
    longest = RECIPES[wire_format].longest - 192
    batches = list(islice(Sequences(vocabulary).batches(dialogs, 8, longest), 2))
    found = measure(lambda ids: served(ids).logits, batches)
    assert found["tokens_right"] > 0.97


@pytest.mark.slow
def test_training_writes_what_can_be_served(
    tmp_path: Path, wire_format: WireFormatName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "_HELD_OUT", 1)  # of 8, which took most of six minutes
    lines: list[str] = []
    recipe = Recipe(steps=2, batch=2, texts=30, tokens=500, every=1, longest=4000)
    train_and_write(tmp_path, recipe, lines.append, wire_format)
    assert (tmp_path / "training.jsonl").read_text().splitlines() == lines
    assert [json.loads(line)["step"] for line in lines[1:]] == [1, 2]
    in_transformers(tmp_path)
    assert Vocabulary.from_pretrained(tmp_path).format.name == SMALL_MODELS[wire_format].wire_format.name
