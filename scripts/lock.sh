#!/usr/bin/env bash
# Renews the locks: makes .venv and .clients anew with the newest versions, and writes these into requirements-*.lock.
# Run scripts/test.sh afterwards. Needs Python 3.11.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
rm -rf .venv .clients
sed -i '/^#/!d' requirements-*.lock  # leaves the comments
GROUP=test
source scripts/setup.sh
"$PYTHON" -m pip freeze --exclude-editable | grep -viE '^(torch|triton)=' >> requirements-dev.lock
scripts/clients.sh
for group in clients clients-litellm; do
  ".clients/$group/bin/python" -m pip freeze | grep -v '^constrained' >> "requirements-$group.lock"
done
