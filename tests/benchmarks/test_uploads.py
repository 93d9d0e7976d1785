"""The benchmark of uploads counts on a small vocabulary: masks that were copied are not copied again."""

from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from benchmarks.host.workload import load
from benchmarks.uploads.run import count


def test_uploads(tmp_path: Path) -> None:
    workload = load(Path("/nonexistent"), tmp_path / "tokenizer")
    found = count(workload, rows=3, tools=2, steps=20)
    new, known = found["new"], found["seen before"]
    assert len(known.sizes) == 20
    assert sum(new.kinds) == 3 * len(new.sizes)
    assert new.kinds[2] > 0
    assert known.kinds[2] == 0
    assert known.kinds[0] > 0 and known.kinds[1] > 0
    assert all(3 * 24 <= size <= 3 * (24 + 32 * 4) for size in known.sizes)
    assert known.median < new.whole[-1]
