#!/usr/bin/env bash
# Run coding agents (Claude Code, Codex CLI, opencode, qwen-code, aider, mini-swe-agent) against a server with this package,
# and write docs/agents.md. Needs node and npm; options are those of `python -m scripts.agents` (see --help).
set -euo pipefail
GROUP=test
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
exec "$PYTHON" -m scripts.agents "$@"
