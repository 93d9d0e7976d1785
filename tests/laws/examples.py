"""Examples of the laws by number: each number is one schema, in Kimi K2's or Kimi K3's encoding, and its texts."""

import json
import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from constrained_k2 import Compiler, Vocabulary
from constrained_k2.testing import write_tokenizer
from scripts.fetch_data import data_path
from tests.kit.k3_turns import as_k3
from tests.laws.feeding import Bench
from tests.laws.laws import broken_laws
from tests.laws.reduction import reduced
from tests.laws.schemas import schema_of


class Fault(NamedTuple):
    """A law that an example breaks."""

    law: str
    number: int
    encoding: str
    schema: Any
    detail: str
    options: str = ""  # of the command

    def __str__(self) -> str:
        how = f"python -m tests.laws.fuzz {self.options}--example {self.number}"
        schema = json.dumps(self.schema, ensure_ascii=False).replace("\x7f", "\\u007f")
        return f"{self.law}\n  {self.encoding}: {schema}\n  {self.detail[:1500]}\n  {how}"


def benches() -> tuple[Bench, Bench]:
    """Kimi K2's and Kimi K3's, on the real vocabulary; on a small one if there are no data."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = data_path("kimi_k2/tokenizer")
        if not tokenizer.exists():
            tokenizer = Path(folder) / "k2"
            tokenizer.mkdir()
            write_tokenizer(tokenizer)
        k3 = Path(folder) / "k3"
        k3.mkdir()
        both = [tokenizer, as_k3(tokenizer, k3)]
        first, second = (Bench(Compiler(Vocabulary.from_pretrained(one))) for one in both)
    return first, second


def faults_of(
    benches: Sequence[Bench], number: int, counts: Counter[str], wanted: int = 1, seconds: float = 40.0
) -> list[Fault]:
    """The laws that an example breaks, one fault each; ``wanted`` of a law, counted in ``counts``, are reduced."""
    bench = benches[random.Random(f"encoding {number}").random() < 0.3]
    schema = schema_of(number)
    found: dict[str, Fault] = {}
    encoding = "Kimi K3" if bench.is_xtml else "Kimi K2"
    for broken in broken_laws(bench, schema, number, counts):
        found.setdefault(broken.law, Fault(broken.law, number, encoding, schema, broken.detail))
    for law, fault in found.items():
        counts[f"broken: {law}"] += 1
        if counts[f"broken: {law}"] > wanted:
            continue
        smallest = reduced(schema, lambda candidate: _detail(bench, candidate, law, number) is not None, seconds)  # noqa: B023 - called at once
        found[law] = fault._replace(schema=smallest, detail=_detail(bench, smallest, law, number) or fault.detail)
    return list(found.values())


def _detail(bench: Bench, schema: Any, law: str, number: int) -> str | None:
    """The detail of a law that a schema breaks with one of three seeds; None if it breaks it with none."""
    for seed in range(number, number + 3) if isinstance(schema, dict) else ():
        for broken in broken_laws(bench, schema, seed, Counter(), values=6):
            if broken.law == law:
                return broken.detail
    return None
