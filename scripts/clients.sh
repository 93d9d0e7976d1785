#!/usr/bin/env bash
# Make .clients/: a virtual environment for each extra of client libraries, which tests/clients runs scripts with. They are
# two, and apart from vLLM's, because instructor and litellm need another version of openai than the others.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
for extra in clients clients-openai2; do
  python=.clients/$extra/bin/python lock=requirements-$extra.lock
  wanted=$(cat pyproject.toml "$lock" | cksum)
  [ "$(cat ".clients/$extra/installed" 2>/dev/null)" != "$wanted" ] || continue
  echo "Making .clients/$extra (a minute)"
  [ -e "$python" ] || python3 -m venv ".clients/$extra"
  constraints=()  # the lock is of Python 3.11; pip resolves anew for another one
  [ "$("$python" -c 'import sys; print(*sys.version_info[:2])')" != "3 11" ] || constraints=(-c "$lock")
  "$python" -m pip install -q ${constraints[@]+"${constraints[@]}"} ".[$extra]"
  echo "$wanted" > ".clients/$extra/installed"
done
