#!/usr/bin/env bash
# Compare a small trained model on real vLLM servers: unconstrained, constrained, and with vLLM's own strict level.
# Options are those of scripts/demo.py (see --help).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
exec "$PYTHON" -m scripts.demo "$@"
