#!/usr/bin/env bash
# Lint, types and tests. `scripts/test.sh --fast` leaves out what starts a server or walks for long: under two minutes on
# two cores where mypy has its cache, one more where it has none. Other options go to pytest.
set -euo pipefail
EXTRAS=test
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
if [ "${1-}" = --fast ]; then
  shift
  set -- -m "not server and not slow" "$@"
fi
"$PYTHON" -m ruff check .
"$PYTHON" -m ruff format --check .
mypy_log=$(mktemp)
trap 'rm -f "$mypy_log"' EXIT
"$PYTHON" -m mypy >"$mypy_log" 2>&1 &
mypy=$!
# One process more than cores, up to four: they wait for servers a third of the time, and each may have one of some 3 GiB.
# Tests that share a server or a file stay in one process.
processes=$(($(nproc) + 1))
failed=0
"$PYTHON" -m pytest -n $((processes < 4 ? processes : 4)) --no-loadscope-reorder --durations=15 "$@" || failed=$?
wait "$mypy" || failed=1
cat "$mypy_log"
exit "$failed"
