#!/usr/bin/env bash
# Lint, types and tests. `scripts/test.sh --fast` leaves out what starts a server or walks for long.
set -euo pipefail
EXTRAS=test
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
if [ "${1-}" = --fast ]; then
  shift
  set -- -m "not server and not slow" "$@"
fi
"$PYTHON" -m ruff check .
"$PYTHON" -m ruff format --check .
"$PYTHON" -m mypy
exec "$PYTHON" -m pytest "$@"
