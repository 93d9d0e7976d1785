"""The V2 logits processor, in processes of their own: Triton's interpreter is chosen before anything is imported."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="vLLM's V2 model runner is written in Triton, which is not installed")

from constrained_k2 import Vocabulary, parse_completion
from constrained_k2.testing import build_model
from constrained_k2.testing.tokenizer import WireFormatName
from tests.kit.tools import tool
from tests.vllm_plugin.served import PROCESSOR

ROOT = Path(__file__).parents[3]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
WORD = {"type": "object", "properties": {"word": {"enum": ["one", "two two two two"]}}, "required": ["word"],
        "additionalProperties": False}  # fmt: skip
BODY = {"tools": [tool("f", WORD)], "tool_choice": {"type": "function", "function": {"name": "f"}}}


def run(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-6000:]}"


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("file", ["interpreted.py", "interpreted_drafts.py"])
def test_against_vllms_own_classes(file: str) -> None:
    run("-m", "pytest", "-x", "-p", "no:cacheprovider", "-o", "timeout=1200", f"tests/vllm_plugin/{file}")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("wire_format", "drafts"),
    [
        ("kimi_k2", 3),
        pytest.param("kimi_k2", 0, marks=pytest.mark.only_all),
        pytest.param("kimi_k3", 0, marks=pytest.mark.only_all),
    ],
)
def test_end_to_end(tmp_path: Path, wire_format: WireFormatName, drafts: int) -> None:
    """A whole V2 engine with a random model; the calls are right, and with ngram drafts some are accepted."""
    model = build_model(tmp_path / "model", arch="llama", wire_format=wire_format)
    vocabulary = Vocabulary.from_pretrained(model)
    prompt = vocabulary.encode('{"word": "two two two two"} functions.f:0')
    extra = {"constrained_k2": json.dumps(BODY)}
    called = [{"prompt": prompt, "params": {"max_tokens": 150, "seed": seed, "extra_args": extra}} for seed in (1, 2)]
    free = {"prompt": prompt, "params": {"max_tokens": 12, "seed": 7}}
    ngram = {"method": "ngram", "num_speculative_tokens": drafts, "prompt_lookup_max": 2, "prompt_lookup_min": 1}
    engine = {"max_model_len": 512, "max_num_batched_tokens": 512, "max_num_seqs": 4, "logits_processors": [PROCESSOR],
              "speculative_config": ngram if drafts else None}  # fmt: skip
    job = {"model": str(model), "engine": engine, "batches": {"alone": [free], "beside": [*called, free]}}
    (tmp_path / "job.json").write_text(json.dumps(job))
    run("-m", "tests.vllm_plugin.v2_in_process", str(tmp_path / "job.json"))
    found = json.loads((tmp_path / "job.out.json").read_text())
    assert found["runner"] == "vllm.v1.worker.cpu.model_runner.CPUModelRunner"
    *answers, beside = ([each["ids"] for each in answer] for answer in found["beside"]["answers"])
    assert [beside] == [[each["ids"] for each in answer] for answer in found["alone"]["answers"]]
    for (ids,) in answers:
        completion = parse_completion(ids, vocabulary)
        assert not completion.content and [call.name for call in completion.tool_calls] == ["f"]
        assert json.loads(completion.tool_calls[0].arguments)["word"] in {"one", "two two two two"}
        assert ids[-1] in vocabulary.format.stop_ids
    accepted = sum(
        found[name]["metrics"].get("vllm:spec_decode_num_accepted_tokens", 0) for name in ("alone", "beside")
    )
    assert accepted > 0 or not drafts
