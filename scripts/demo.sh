#!/usr/bin/env bash
# The main job in one command: a small trained model on real vLLM servers, unconstrained, constrained and by vLLM itself.
# Options go to `constrained-k2 demo` (see --help).
set -euo pipefail
EXTRAS=demo
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
exec "$PYTHON" -m constrained_k2 demo "$@"
