#!/usr/bin/env bash
# The main job in one command: a real vLLM server, the same requests unconstrained and constrained, side by side.
# Options go to `constrained-k2 demo` (see --help).
set -euo pipefail
EXTRAS=demo
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
exec "$PYTHON" -m constrained_k2 demo "$@"
