"""Ask the stand-in its held-out samples on a real vLLM server, unconstrained and constrained, and print the figures.

.venv/bin/python scripts/measure_standin.py [--count 300] [--temperature 0.7] [--answers FILE]
"""

import argparse
import json
import tempfile
from pathlib import Path

from constrained_k2.evaluation.server import VllmServer
from constrained_k2.evaluation.standin.build import build_stand_in
from constrained_k2.evaluation.standin.measure import measure_arms, write_answer

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--answers", type=Path, default=Path("/dev/null"), help="takes every answer, as JSON lines")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, options.answers.open("w") as answers:
        model = build_stand_in(Path(folder) / "model")
        with VllmServer(model, log=Path(folder) / "server.log") as server:
            found = measure_arms(
                server.url,
                count=options.count,
                seed=options.seed,
                temperature=options.temperature,
                on_answer=lambda *record: write_answer(answers, *record),
            )
    print(json.dumps(found, indent=2))
