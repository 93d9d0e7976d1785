"""The V2 logits processor, in processes of their own: Triton's interpreter is chosen before anything is imported."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")
pytest.importorskip("triton", reason="vLLM's V2 model runner is written in Triton, which is not installed")

from constrained_k2 import Vocabulary, parse_completion
from constrained_k2.testing import build_model
from constrained_k2.testing.tokenizer import WireFormatName

ROOT = Path(__file__).parents[3]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
    return done.stdout


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
    model = build_model(tmp_path, arch="llama", wire_format=wire_format)
    found = json.loads(run("-m", "tests.vllm_plugin.v2_in_process", str(model), str(drafts)).splitlines()[-1])
    assert found["runner"] == "CPUModelRunner" and found["module"] == "vllm.v1.worker.cpu.model_runner"
    vocabulary = Vocabulary.from_pretrained(model)
    for ids in found["required"]:
        completion = parse_completion(ids, vocabulary)
        assert not completion.content and [call.name for call in completion.tool_calls] == ["f"]
        assert json.loads(completion.tool_calls[0].arguments)["word"] in {"one", "two two two two"}
        assert ids[-1] in vocabulary.format.stop_ids
    assert found["free"] == found["free alone"]
    assert found["accepted"] > 0 or not drafts
