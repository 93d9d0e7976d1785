"""Run the schema suite of the Kimi Vendor Verifier against a server that is started here, and count what it accepts.

The suite is the verifier's own, unchanged (`python -m scripts.fetch_data --only vendor_verifier`). The model is
untrained: it ends a value by chance only, so the operator's finish reserve ends what max_tokens would cut.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.vendor_verifier.run import FOLDER, run_suite
from constrained_k2.evaluation.server import (
    BACKEND_FLAGS,
    CONSTRAINED_FLAGS,
    KIMI_K3_FLAGS,
    STRICT_FLAGS,
    WITHOUT_PLUGIN,
    VllmServer,
    with_settings,
)
from constrained_k2.testing import build_model
from scripts.fetch_data import data_path

_SERVERS = {"structured_output": BACKEND_FLAGS, "logits_processor": CONSTRAINED_FLAGS, "strict": STRICT_FLAGS}


def main() -> int:
    """Run the suite; 1 if a case fails."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vendor_verifier", description=__doc__)
    parser.add_argument(
        "--server",
        choices=_SERVERS,
        default="structured_output",
        help="a route, or vLLM's strict level (default: %(default)s)",
    )
    parser.add_argument(
        "--finish-reserve", type=int, default=60, help="of the operator, in tokens (default: %(default)s)"
    )
    parser.add_argument("--arch", choices=("kimi_k2", "llama"), default="kimi_k2", help="(default: %(default)s)")
    formats = ("kimi_k2", "kimi_k3")
    parser.add_argument("--wire-format", choices=formats, default="kimi_k2", help="(default: %(default)s)")
    parser.add_argument("--tokenizer", type=Path, help="directory of the real vocabulary (default: a small one)")
    parser.add_argument("--report", type=Path, help="keep the suite's report here")
    options, further = parser.parse_known_args()
    folder = data_path(FOLDER)
    if not folder.is_dir():
        parser.error(f"no {folder}: run python -m scripts.fetch_data --only {FOLDER}")
    flags = _SERVERS[options.server]
    if options.wire_format == "kimi_k3":  # vLLM's parser has the format's name
        flags = (*(flag.replace("kimi_k2", "kimi_k3") for flag in flags), *KIMI_K3_FLAGS)
    if options.server != "strict":  # a random model means none of its calls
        flags = with_settings(flags, finish_reserve=options.finish_reserve, undeclared_calls="nearest")
    environment = WITHOUT_PLUGIN if options.server == "strict" else {}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        model = build_model(
            directory / "model", arch=options.arch, tokenizer=options.tokenizer, wire_format=options.wire_format
        )
        with VllmServer(model, flags, log=directory / "server.log", environment=environment) as server:
            result = run_suite(server.url, folder, options.report or directory / "report.json", further)
    for line in result.failed:
        print(line)
    print(f"{result.passed} of {result.total} cases valid")
    return int(bool(result.failed))


if __name__ == "__main__":
    sys.exit(main())
