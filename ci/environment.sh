# Finds or builds the Python that the scripts of this folder run; sourced by them, never run.
#
# Sets `root` (the repository) and, after `enter`, `python` (an interpreter that imports biprop and its pins).
# It runs no test: ci/props, ci/test and ci/check do.

root=$(unset CDPATH && cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P) || exit 2

# One sentence, and the exit code of wrong use.
fail() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 2
}

# enter HERE: HERE is 1 for the interpreter in use, 0 for the repository's own .venv.
enter() {
  # Hundreds of processes import this tree: each would compile it anew where nothing may be written.
  unset PYTHONDONTWRITEBYTECODE
  if [ "$1" = 1 ]; then
    use_here
  else
    use_venv
  fi
  if ! "$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("biprop") is None)'; then
    export PYTHONPATH="$root/src${PYTHONPATH:+:$PYTHONPATH}"
  fi
  print_versions
}

use_here() {
  python=${PYTHON:-$(command -v python || command -v python3)} ||
    fail "no python is on PATH: activate an environment, or name an interpreter in PYTHON."
  case "$python" in
    /*) ;;
    */*) python=$PWD/$python ;;
  esac
  is_recent "$python" || fail "--here needs Python 3.11 or later, and $python is none."
  local missing
  missing=$("$python" - <<'PY'
import importlib.util
names = ("attrs", "cattrs", "click", "hypothesis", "jinja2", "numpy", "pytest", "rich", "torch", "xdist")
print(*(name for name in names if importlib.util.find_spec(name) is None))
PY
  ) || fail "$python does not start."
  [ -z "$missing" ] || fail "--here installs nothing, and $python lacks: $missing."
}

use_venv() {
  python="$root/.venv/bin/python"
  # Two runs of one clone must not build at once; a folder's own file is lock enough, and needs no clean-up.
  if command -v flock >/dev/null; then
    { flock 9 && build_if_stale; } 9<"$root/pyproject.toml" || exit 2
  else
    build_if_stale
  fi
}

build_if_stale() {
  local base wanted stamp="$root/.venv/.biprop-stamp"
  if [ -x "$python" ] && [ -f "$stamp" ] && is_recent "$python"; then
    wanted=$(fingerprint "$python")
    [ "$wanted" = "$(cat "$stamp")" ] && return 0
  fi
  # A build that was cut short may have left a Python without pip.
  if ! is_recent "$python" || ! "$python" -m pip --version >/dev/null 2>&1; then
    base=$(find_python) ||
      fail "no Python 3.11 or later is on PATH: install one, or name it in PYTHON."
    echo "== building .venv with $base"
    "$base" -m venv --clear "$root/.venv" ||
      fail "$base cannot make .venv: give it the modules venv and ensurepip."
  fi
  echo "== installing the pins of ci/constraints.txt into .venv"
  rm -f "$stamp"
  # The build backend comes first and from the pins too: pip's isolated builds know no constraints.
  install setuptools && install --no-build-isolation --editable "$root[dev]" ||
    fail "pip could not install the pins of ci/constraints.txt; its own message stands above."
  fingerprint "$python" >"$stamp"
}

install() {
  # Twice quiet, for errors alone. 9>&-: what pip starts must not hold the lock.
  # Bytecode is made where a module is imported: most of torch and Ray never is.
  "$python" -m pip install --quiet --quiet --disable-pip-version-check --no-compile \
    --constraint "$root/ci/constraints.txt" "$@" 9>&-
}

# What decides the content of .venv; a moved clone is stale too, since the editable install names its path.
fingerprint() {
  "$1" - "$root" <<'PY'
import hashlib
import pathlib
import sys

root = pathlib.Path(sys.argv[1])
parts = [sys.version, str(root)]
parts += [(root / name).read_text() for name in ("pyproject.toml", "ci/constraints.txt")]
print(hashlib.sha256("\0".join(parts).encode()).hexdigest())
PY
}

is_recent() {
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

# The pins were taken with 3.11, so it comes first.
find_python() {
  local name
  for name in ${PYTHON:+"$PYTHON"} python3.11 python3 python3.12 python3.13 python3.14; do
    # A shim may exist and still have no interpreter behind it, so each is asked.
    if is_recent "$name"; then
      command -v "$name"
      return 0
    fi
  done
  return 1
}

print_versions() {
  "$python" - <<'PY'
import importlib.metadata
import os
import platform
import sys


def version(name: str) -> str:
    try:
        return f"{name} {importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        return f"{name} not installed"


names = ("biprop", "torch", "triton", "hypothesis", "numpy", "pytest", "pytest-xdist")
cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
print(f"== Python {platform.python_version()} ({sys.executable}) on {platform.platform()}, {cores} cores")
print("==", ", ".join(version(name) for name in names))
PY
}
