#!/usr/bin/env bash
# Lint, types and tests. `scripts/test.sh --fast` leaves out what starts a server or walks for long, and tries less of
# the rest; `--all` leaves nothing out and tries more (tests/kit/budget.py). Other options go to pytest.
set -euo pipefail
GROUP=test
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
case "${1-}" in
  --fast) shift; export CONSTRAINED_K2_TESTS=fast ;;
  --all) shift; export CONSTRAINED_K2_TESTS=all ;;
esac
"$PYTHON" -m ruff check .
"$PYTHON" -m ruff format --check .
"$PYTHON" -m scripts.lint
mypy_log=$(mktemp)
trap 'rm -f "$mypy_log"' EXIT
"$PYTHON" -m mypy >"$mypy_log" 2>&1 &
mypy=$!
# One process per core, up to four: each may have a server of some 3 GiB, and three on two cores took longer than two.
# Tests that share a server or a file stay in one process.
cores=$(nproc)
failed=0
"$PYTHON" -m pytest -n $((cores < 4 ? cores : 4)) --no-loadscope-reorder --durations=15 "$@" || failed=$?
wait "$mypy" || failed=1
cat "$mypy_log"
[ "${CONSTRAINED_K2_TESTS-}" != all ] || scripts/other_versions.sh "$@" || failed=$?
exit "$failed"
