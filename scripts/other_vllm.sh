#!/usr/bin/env bash
# Run tests on a vLLM that has no CPU build: its Python sources over the compiled extensions of the CPU build here.
# example: scripts/other_vllm.sh 0.33.0 tests/vllm_plugin
set -euo pipefail
GROUP=test
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
version=$1
shift
folder="$PWD/build/vllm-$version"
if [ ! -d "$folder" ]; then
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  "$PYTHON" -m pip download --quiet --no-deps --dest "$scratch" "vllm==$version"
  mkdir "$scratch/site"
  "$PYTHON" - "$scratch" <<'PYTHON'
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

scratch = Path(sys.argv[1])
with ZipFile(next(scratch.glob("*.whl"))) as wheel:
    wheel.extractall(scratch / "site", [name for name in wheel.namelist() if not name.endswith(".so")])
installed = Path(find_spec("vllm").submodule_search_locations[0])
for extension in installed.glob("*.so"):
    shutil.copy2(extension, scratch / "site" / "vllm")
PYTHON
  # What this vLLM imports and the CPU build here does not.
  "$PYTHON" -m pip install --quiet --no-deps --target "$scratch/site" orjson
  mkdir -p build
  mv "$scratch/site" "$folder"
fi
export VLLM_TARGET_DEVICE=cpu PYTHONPATH="$folder${PYTHONPATH:+:$PYTHONPATH}"
exec "$PYTHON" -m pytest "$@"
