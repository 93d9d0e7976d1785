#!/usr/bin/env bash
# Make .clients/: a virtual environment for each extra of client libraries, which tests/clients runs scripts with. They are
# two, and apart from vLLM's, because instructor and litellm need another version of openai than the others.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
for extra in clients clients-openai2; do
  [ -e ".clients/$extra/bin/python" ] || python3 -m venv ".clients/$extra"
  ".clients/$extra/bin/python" -m pip install -q ".[$extra]"
done
