"""SmolLM2 learns from right dialogs, none of them a test; its adapter is trained, written and merged as one."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from jsonschema import Draft202012Validator
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from constrained_k2.formats.kimi_k2 import KIMI_K2
from constrained_k2.vocabulary.vocabulary import Vocabulary
from scripts.smollm2.adapter import Adapted, load_adapter, merged_model, save_adapter
from scripts.smollm2.base import GGUF, Base, open_gguf, read_base
from scripts.smollm2.checkpoint import ADAPTER, HEAD
from scripts.smollm2.dialogs import Author, right_calls
from scripts.smollm2.eagle import Head, loss_of, states_of, write_head
from scripts.smollm2.leaderboard import Leaderboard
from scripts.smollm2.questions import WHEEL, Questions, questions
from scripts.smollm2.tokenizer import NAMES, write_tokenizer
from scripts.smollm2.training import HEAD_RECIPE, Recipe, Written, train
from tests.kit.data import fetched

pytestmark = pytest.mark.slow  # they read 2 MB of questions, or 98 MB of weights

SMALL = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
}
OTHERS = {"max_position_embeddings": 128, "hidden_act": "silu", "torch_dtype": "bfloat16"}


@pytest.fixture(scope="module")
def asked() -> Questions:
    fetched(WHEEL)
    return questions()


@pytest.fixture
def small() -> Base:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SMALL))
    weights = {name: weight.detach().clone() for name, weight in model.state_dict().items() if name != "lm_head.weight"}
    return Base(SMALL, weights)


def test_no_test_is_learnt_from(asked: Questions) -> None:
    assert len(asked.tests) > 2400 and len(asked.learnt) > 1000
    assert {name for sample in asked.learnt for name in sample.tools}.isdisjoint(
        name for sample in asked.tests for name in sample.tools
    )
    texts = [{json.dumps(sample.body["messages"]) for sample in part} for part in asked]
    assert not texts[0] & texts[1]


def test_only_right_dialogs_are_learnt_from(asked: Questions) -> None:
    kinds = set()
    tested = {name for sample in asked.tests for name in sample.tools}
    for dialog in islice(Author(asked, 3), 400):
        tools = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in dialog["tools"]}
        assert len(tools) == len(dialog["tools"]) and tested.isdisjoint(tools)
        made = [call for message in dialog["messages"] for call in message.get("tool_calls", ())]
        kinds.add(min(len(made), 2))
        for index, call in enumerate(made):
            name = call["function"]["name"]
            assert call["id"] == KIMI_K2.call_id(name, index)
            Draft202012Validator(tools[name]).validate(json.loads(call["function"]["arguments"]))
        assert dialog["messages"][-1]["role"] == "assistant"
    assert kinds == {0, 1, 2}


def test_the_leaderboard_takes_the_calls_that_are_learnt(asked: Questions) -> None:
    leaderboard = Leaderboard()
    judged = [(sample, calls) for sample in asked.learnt + asked.tests if (calls := right_calls(sample))]
    wrong = [calls for sample, calls in judged if not leaderboard.is_right(sample, calls)]
    assert len(judged) > 2200 and len(wrong) <= 10, wrong
    sample, calls = next((sample, calls) for sample, calls in judged if len(calls) == 1 and calls[0][1])
    ((name, arguments),) = calls
    assert not leaderboard.is_right(sample, [])
    assert not leaderboard.is_right(sample, [*calls, *calls])
    assert not leaderboard.is_right(sample, [(f"{name}_", arguments)])
    assert not leaderboard.is_right(sample, [(name, dict.fromkeys(arguments, "another"))])
    assert not leaderboard.is_right(sample, [(name, "{}")])
    irrelevant = next(sample for sample in asked.tests if sample.category == "irrelevance")
    assert leaderboard.is_right(irrelevant, []) and not leaderboard.is_right(irrelevant, calls)


def written(count: int) -> list[tuple[list[int], list[bool]]]:
    draw = torch.Generator().manual_seed(1)
    found = [torch.randint(0, 64, (20,), generator=draw).tolist() for _ in range(count)]
    return [(ids, [position > 8 for position in range(20)]) for ids in found]


class Dialogs(list[Any]):
    """Ids in place of dialogs."""

    digest = "of these"


def test_an_interrupted_training_ends_as_another(small: Base, tmp_path: Path) -> None:
    recipe = Recipe(steps=3, dialogs=2, warm_up=1)
    dialogs = Dialogs(written(6))
    trained(small, dialogs, recipe, tmp_path / "whole" / "adapter.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scripts.smollm2.training._KEPT", 1)
        said = iter(["step 1"])
        with pytest.raises(StopIteration):  # after step 2, whose state is not saved
            trained(small, dialogs, recipe, tmp_path / "parts" / "adapter.safetensors", lambda _: print(next(said)))
        trained(small, dialogs, recipe, tmp_path / "parts" / "adapter.safetensors")
    whole, parts = (load_adapter(tmp_path / name / "adapter.safetensors") for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    with pytest.raises(ValueError, match="another recipe"):
        trained(small, dialogs, Recipe(steps=4), tmp_path / "whole" / "adapter.safetensors")


def trained(base: Base, dialogs: Any, recipe: Recipe, out: Path, say: Callable[[str], None] = print) -> Adapted:
    model = Adapted(base)
    train(model.trained(), model.loss_of, dialogs, recipe, out, say)
    return model


def test_what_is_merged_answers_as_what_was_trained(small: Base, tmp_path: Path) -> None:
    dialogs = written(24)
    before = sum(Adapted(small).loss_of(*dialog).item() for dialog in dialogs[:2])
    recipe = Recipe(steps=12, dialogs=2, rate=1e-2, warm_up=1)
    model = trained(small, Dialogs(dialogs), recipe, tmp_path / "adapter.safetensors")
    assert sum(model.loss_of(*dialog).item() for dialog in dialogs[:2]) < before
    changed = merged_model(small, load_adapter(tmp_path / "adapter.safetensors"))
    ids = torch.tensor([[*NAMES, 20, 40]])
    with torch.no_grad():
        torch.testing.assert_close(changed(ids).logits, model.embedding.logits(model(ids)), atol=0.02, rtol=0.05)


def test_an_adapter_is_written_in_a_byte_a_weight(small: Base, tmp_path: Path) -> None:
    weights = {name: torch.randn_like(weight) for name, weight in Adapted(small).trained().items()}
    weights |= {"norm": torch.ones(16) + torch.randn(16) / 100}
    save_adapter(tmp_path / "adapter.safetensors", weights, {"of": "a test"})
    read = load_adapter(tmp_path / "adapter.safetensors")
    assert read.keys() == weights.keys()
    for name, weight in weights.items():
        assert (read[name] - weight).abs().max() <= weight.abs().max() / 100


SHIPPED = pytest.mark.parametrize(
    ("file", "recipe"), [(ADAPTER, Recipe()), (HEAD, HEAD_RECIPE)], ids=["adapter", "head"]
)


@SHIPPED
def test_what_ships_is_small_and_of_this_recipe(file: Path, recipe: Recipe) -> None:
    content = file.read_bytes()
    page = file.with_name("README.md").read_text("utf-8")
    assert hashlib.sha256(content).hexdigest() in page
    assert len(content) < 4_200_000
    with safe_open(file, "pt") as opened:
        facts = opened.metadata()
    assert json.loads(facts["recipe"]) == asdict(recipe)
    log = [json.loads(line) for line in file.with_suffix(".jsonl").read_text().splitlines()]
    assert log[-1]["step"] == recipe.steps and log[-1]["loss"] < log[0]["loss"] / 2


@pytest.mark.only_all  # a minute
@SHIPPED
def test_what_ships_saw_these_dialogs(tmp_path: Path, asked: Questions, file: Path, recipe: Recipe) -> None:
    fetched(GGUF)
    write_tokenizer(tmp_path, open_gguf())
    written = Written(asked, Vocabulary.from_pretrained(tmp_path), recipe)
    for _ in islice(written, recipe.steps * recipe.dialogs):
        pass
    with safe_open(file, "pt") as opened:
        assert opened.metadata()["dialogs_sha256"] == written.digest


def plain(base: Base) -> LlamaForCausalLM:
    return merged_model(base, Adapted(base).trained())


def test_drafts_are_of_the_past_alone(small: Base) -> None:
    model, head = plain(small), Head(small.config)
    ids = torch.randint(0, 64, (12,), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        whole = head.drafts(model, ids, states_of(model, ids)[0])
        for length in (5, 9):
            part = head.drafts(model, ids[:length], states_of(model, ids[:length])[0])
            for number in range(len(part)):
                torch.testing.assert_close(part[number][number:], whole[number][number : length - 1])


def test_a_head_learns_what_its_model_says(small: Base, tmp_path: Path) -> None:
    model, head = plain(small), Head(small.config)
    dialogs = written(80)
    before = sum(loss_of(model, head, *dialog).item() for dialog in dialogs[:4])
    recipe = Recipe(steps=40, dialogs=2, rate=1e-2, warm_up=1)
    train(head.trained(), partial(loss_of, model, head), Dialogs(dialogs), recipe, tmp_path / "head.safetensors")  # type: ignore[arg-type]
    assert sum(loss_of(model, head, *dialog).item() for dialog in dialogs[:4]) < before
    directory = write_head(tmp_path / "head", SMALL | OTHERS, load_adapter(tmp_path / "head.safetensors"))
    assert load_file(directory / "model.safetensors").keys() == head.trained().keys()


def test_the_base_model_speaks(tmp_path: Path) -> None:
    fetched(GGUF)
    gguf = open_gguf()
    base = read_base(gguf)
    model = LlamaForCausalLM(LlamaConfig(**base.config))
    assert model.load_state_dict(base.weights, strict=False).missing_keys == ["lm_head.weight"]
    model.tie_weights()
    write_tokenizer(tmp_path, gguf)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    ids = tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
    said = model.generate(ids, max_new_tokens=2, do_sample=False)
    assert tokenizer.decode(said[0]) == "The capital of France is Paris."
