"""The random models: their files load as production's do, and their weights follow the prior."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, DeepseekV3Config, DeepseekV3ForCausalLM, LlamaConfig, LlamaForCausalLM

from constrained_k2 import Vocabulary
from constrained_k2.formats import kimi_k3
from constrained_k2.formats.kimi_k2 import BASE_SIZE as REAL_BASE_SIZE
from constrained_k2.formats.kimi_k2 import SPECIAL_TOKENS
from constrained_k2.testing import DEFAULT_PRIOR, build_model, write_tokenizer
from constrained_k2.testing.model import unigram_logits
from constrained_k2.testing.tokenizer import train_ranks, training_text
from tests.kit.data import data, kimi_k3_prompts, rendered
from tests.kit.tools import tool

SMALL_BASE_SIZE = 1024

TEXTS = (
    "What's the weather like in Paris?",
    "Zürich, 北京 and São Paulo; naïve café",
    "🌦 👩‍👩‍👧 🇩🇪 e\u0301 \u200b",
    '{"city": "Beijing", "days": [1, 22, 333, 4444], "ok": true}',
    "    indented\n\n\tlines \r\n  and trailing   ",
    "ሰላም ދިވެހި 𐍈𐌰 𓀀",
    "",
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both shapes with the small vocabulary."""
    root = tmp_path_factory.mktemp("models")
    return {
        "kimi_k2": build_model(root / "tiny-kimi-k2", arch="kimi_k2"),
        "llama": build_model(root / "tiny-llama", arch="llama"),
    }


@pytest.fixture(scope="module")
def tokenizer(models: dict[str, Path]) -> Any:
    """The small vocabulary's tokenizer, loaded as a server loads it."""
    return AutoTokenizer.from_pretrained(models["llama"], trust_remote_code=True)


@pytest.fixture(scope="module")
def real_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The real vocabulary's tokenizer, out of a model that was built with it."""
    out = build_model(
        tmp_path_factory.mktemp("models") / "real-llama", arch="llama", tokenizer=data("kimi_k2/tokenizer")
    )
    return AutoTokenizer.from_pretrained(out, trust_remote_code=True)


def merge_bytes(ranks: dict[bytes, int], piece: bytes) -> list[int]:
    """Byte-pair encode `piece` by the definition: join the neighbours of the lowest rank until none can be joined."""
    parts = [bytes([value]) for value in piece]
    while mergeable := [left + right for left, right in pairwise(parts) if left + right in ranks]:
        best = min(mergeable, key=ranks.__getitem__)
        index = next(i for i, (left, right) in enumerate(pairwise(parts)) if left + right == best)
        parts[index : index + 2] = [best]
    return [ranks[part] for part in parts]


def check_special_tokens(tokenizer: Any, base_size: int, named: Mapping[int, str]) -> None:
    for offset in range(256):
        token_id = base_size + offset
        text = named.get(offset, f"<|reserved_token_{token_id}|>")
        assert tokenizer.convert_tokens_to_ids(text) == token_id
        assert tokenizer.convert_ids_to_tokens(token_id) == text
        assert tokenizer.encode(f"so {text}1") == [*tokenizer.encode("so "), token_id, *tokenizer.encode("1")]


@pytest.mark.parametrize(("which", "base_size"), [("tokenizer", SMALL_BASE_SIZE), ("real_tokenizer", REAL_BASE_SIZE)])
def test_vocabulary(which: str, base_size: int, request: pytest.FixtureRequest) -> None:
    """Sizes, special ids and flags, round trips, partial UTF-8."""
    tokenizer = request.getfixturevalue(which)
    size = base_size + 256
    assert not tokenizer.is_fast
    assert tokenizer.vocab_size == len(tokenizer) == size
    assert sorted(tokenizer.get_vocab().values()) == list(range(size))
    check_special_tokens(tokenizer, base_size, SPECIAL_TOKENS)
    assert tokenizer.eos_token_id == base_size + 1
    assert set(tokenizer.get_added_vocab()) == set(SPECIAL_TOKENS.values())
    assert tokenizer.decode([base_size + 2, base_size + 11], skip_special_tokens=True) == "<|tool_calls_section_begin|>"

    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        tokens = tokenizer.convert_ids_to_tokens(ids)
        assert tokenizer.convert_tokens_to_ids(tokens) == ids
        assert tokenizer.convert_tokens_to_string(tokens) == text
        if text:  # tiktoken has no token bytes of nothing
            assert b"".join(tokenizer.model.decode_tokens_bytes(ids)) == text.encode()

    halves = tokenizer.convert_ids_to_tokens(tokenizer.model.encode_single_token(bytes([b])) for b in "é".encode())
    assert tokenizer.convert_tokens_to_string(halves[:1]) == "\ufffd"
    assert tokenizer.convert_tokens_to_string(halves) == "é"


def test_small_tokenizer_config_is_the_real_one_with_other_ids(models: dict[str, Path]) -> None:
    small = json.loads((models["llama"] / "tokenizer_config.json").read_bytes())
    real = json.loads(data("kimi_k2/tokenizer/tokenizer_config.json").read_bytes())
    shift = REAL_BASE_SIZE - SMALL_BASE_SIZE
    small["added_tokens_decoder"] = {str(int(key) + shift): val for key, val in small["added_tokens_decoder"].items()}
    assert small == real


def test_small_vocabulary_is_what_tiktoken_merges(tokenizer: Any) -> None:
    ranks = train_ranks(training_text(), SMALL_BASE_SIZE)
    assert list(ranks.values()) == list(range(SMALL_BASE_SIZE))
    for token, rank in ranks.items():
        # From the bytes up: tiktoken itself looks a whole piece up first, which would hide a token no merge reaches.
        assert merge_bytes(ranks, token) == [rank], token
        assert tokenizer.model.encode_single_token(token) == rank
    for piece in ("weather", " unseenwords", "北京天气", '":"', "\n        ", "qwxz"):
        assert tokenizer.model.encode_ordinary(piece) == merge_bytes(ranks, piece.encode())


def test_training_on_too_little_text_is_refused() -> None:
    with pytest.raises(ValueError, match="258 tokens, not 300"):
        train_ranks("abc", 300)


def test_chat_template_renders_the_golden_prompts(tokenizer: Any) -> None:
    rows = rendered("k2_instruct_after_fix_reconstructed")
    assert {row["add_generation_prompt"] for row in rows} == {True, False}
    for row in rows:
        assert row["error"] is None
        options = {"add_generation_prompt": row["add_generation_prompt"], **row["chat_template_kwargs"]}
        messages, tools = row["request"]["messages"], row["request"].get("tools")
        text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, **options)
        assert text == row["text"], row["case"]
        ids = tokenizer.apply_chat_template(messages, tools=tools, return_dict=False, **options)
        assert ids == tokenizer.model.encode(row["text"], allowed_special="all"), row["case"]


def test_chat_template_sorts_tool_keys_and_leaves_the_tools_alone(tokenizer: Any) -> None:
    tools = [tool("f", {"type": "object", "$defs": {"b": 1, "a": 2}})]
    before = json.dumps(tools)
    text = tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tools=tools, tokenize=False)
    assert '[{"function":{"name":"f","parameters":{"$defs":{"a":2,"b":1},"type":"object"}},"type":"function"}]' in text
    assert json.dumps(tools) == before


@pytest.mark.parametrize(
    ("arch", "model_class", "config_class"),
    [("llama", LlamaForCausalLM, LlamaConfig), ("kimi_k2", DeepseekV3ForCausalLM, DeepseekV3Config)],
)
def test_weights_fit_the_architecture_and_follow_the_prior(
    models: dict[str, Path], arch: str, model_class: Any, config_class: Any
) -> None:
    fields = json.loads((models[arch] / "config.json").read_bytes())
    fields.pop("model_type")  # transformers has no `kimi_k2`: servers map it to DeepSeek-V3
    model, report = model_class.from_pretrained(
        models[arch], config=config_class(**fields), dtype=torch.float32, output_loading_info=True
    )
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))

    # int64 [sequences, positions]: ordinary tokens at random
    contexts = torch.randint(0, SMALL_BASE_SIZE, (32, 64), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        probabilities = model(contexts).logits.softmax(dim=-1)
    mean = probabilities.mean(dim=(0, 1))
    ids = {content: SMALL_BASE_SIZE + offset for offset, content in SPECIAL_TOKENS.items()} | {'"': 0x22, "}": 0x7D}
    for text in ("<|tool_calls_section_begin|>", "<|im_end|>", '"', "}"):
        token_id = ids[text]
        assert DEFAULT_PRIOR[text] / 2 < mean[token_id] < DEFAULT_PRIOR[text] * 2, text
        # The context matters too: one token's logit is spread over contexts by about 1 nat.
        assert 0.7 < probabilities[:, :, token_id].log().std() < 1.4, text


def test_kimi_k3_has_its_own_special_tokens_and_ends(tmp_path: Path) -> None:
    out = build_model(tmp_path / "k3", arch="llama", wire_format="kimi_k3")
    tokenizer = AutoTokenizer.from_pretrained(out, trust_remote_code=True)
    check_special_tokens(tokenizer, SMALL_BASE_SIZE, kimi_k3.SPECIAL_TOKENS)
    assert tokenizer.eos_token_id == SMALL_BASE_SIZE + 1
    assert Vocabulary.from_pretrained(out).format.name == "Kimi K3"
    for name in ("config.json", "generation_config.json"):
        assert json.loads((out / name).read_bytes())["eos_token_id"] == SMALL_BASE_SIZE + 2
    assert not (out / "chat_template.jinja").exists()
    vocabulary = tokenizer.get_vocab()
    texts = [token for token, _ in sorted(vocabulary.items(), key=lambda item: item[1])]
    shares = torch.tensor(unigram_logits(texts, {f"/{kimi_k3.SPECIAL_SHAPE}/": 0.5})).softmax(dim=0)
    assert shares[SMALL_BASE_SIZE:].sum().item() == pytest.approx(0.5)  # the expression fits these alone


def test_kimi_k3_tokenizer_renders_the_goldens(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, data("kimi_k2/tokenizer"), wire_format="kimi_k3")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=True)
    different = []
    for golden in kimi_k3_prompts():
        request = golden["request"]
        given = {"tools": request["tools"], **request["options"]}
        text = tokenizer.apply_chat_template(request["messages"], tokenize=False, **given)
        ids = tokenizer.apply_chat_template(request["messages"], **given)
        assert tokenizer.decode(ids) == text
        if (text, ids) != (golden["text"], golden["ids"]):
            different.append((golden["name"], text == golden["text"].replace("1e2", "100.0")))
    assert different == [("assistant_with_reasoning_and_tool_calls", True)]  # rendered by the newer revision


def test_prior_is_spread_over_the_tokens_that_a_key_names() -> None:
    logits = unigram_logits(["a", "b", "1", "2", "12"], {"a": 0.5, "/[0-9]+/": 0.3, "12": 0.1})
    assert torch.tensor(logits).softmax(dim=0).tolist() == pytest.approx([0.5, 0.1, 0.15, 0.15, 0.1])
    assert logits[1] == 0.0


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"a": 1.0}, "less than 1"),
        ({"a": 0.0}, "above 0"),
        ({"missing": 0.1}, "no token"),
        ({"/./": 0.1}, "every token"),
    ],
)
def test_invalid_priors_are_refused(shares: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        unigram_logits(["a", "b"], shares)


@pytest.mark.slow
def test_same_seed_same_weights(models: dict[str, Path], tmp_path: Path) -> None:
    same = build_model(tmp_path / "same", arch="llama")
    other = build_model(tmp_path / "other", arch="llama", seed=1)
    weights = (models["llama"] / "model.safetensors").read_bytes()
    assert (same / "model.safetensors").read_bytes() == weights
    assert (same / "tiktoken.model").read_bytes() == (models["llama"] / "tiktoken.model").read_bytes()
    assert (other / "model.safetensors").read_bytes() != weights


def test_importing_the_package_loads_no_torch() -> None:
    code = "import sys, constrained_k2.testing; print(*{'torch', 'transformers', 'tiktoken'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"
