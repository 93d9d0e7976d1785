#!/usr/bin/env bash
# Make .clients/: a virtual environment for each group of client libraries, which tests/clients runs scripts with. They are
# two, and apart from vLLM's, because instructor and litellm need another version of openai than the others.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
for group in clients clients-litellm; do
  python=.clients/$group/bin/python lock=requirements-$group.lock
  wanted=$(cat pyproject.toml "$lock" | cksum)
  [ "$(cat ".clients/$group/installed" 2>/dev/null)" != "$wanted" ] || continue
  echo "Making .clients/$group (a minute)"
  [ -e "$python" ] || python3 -m venv ".clients/$group"
  constraints=()  # the lock is of Python 3.11; pip resolves anew for another one
  [ "$("$python" -c 'import sys; print(*sys.version_info[:2])')" != "3 11" ] || constraints=(-c "$lock")
  "$python" -m pip install -q "pip>=25.1"  # has --group
  "$python" -m pip install -q ${constraints[@]+"${constraints[@]}"} . --group "$group"
  echo "$wanted" > ".clients/$group/installed"
done
