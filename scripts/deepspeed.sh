#!/usr/bin/env bash
# Run the tests marked `deepspeed` in an environment that is .venv plus DeepSpeed: the package has no wheels, is built
# when it is installed, and compiles an operator when its engine is first made, which not everybody's .venv shall wait
# for. On a CPU: its ranks talk by gloo. Idempotent: the environment is stamped with what it was made from.
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=.venv-deepspeed
DEEPSPEED='deepspeed>=0.19.8,<0.20'
stamp="$VENV/.stamp-$(cat pyproject.toml scripts/deepspeed.sh | sha256sum | cut -c1-16)"

export DS_ACCELERATOR=cpu DS_BUILD_OPS=0 OMP_NUM_THREADS=1
export TORCH_EXTENSIONS_DIR="$PWD/$VENV/extensions"
export PATH="$PWD/$VENV/bin:$PATH"   # ninja

packages() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

if [ ! -e "$stamp" ]; then
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  printf '\033[1mInstalling DeepSpeed into %s\033[0m\n' "$VENV" >&2
  command -v g++ >/dev/null || { echo "error: DeepSpeed compiles an operator and there is no g++: install it (Debian: g++)" >&2; exit 1; }
  rm -rf "$VENV"
  .venv/bin/python -m venv "$VENV"
  echo "import site; site.addsitedir('$(packages .venv)')" >"$(packages "$VENV")/dart.pth"   # what .venv has, torch before all
  "$VENV/bin/python" -m pip install --disable-pip-version-check -q ninja wheel setuptools >"$log" 2>&1 &&
    "$VENV/bin/python" -m pip install --disable-pip-version-check -q --no-build-isolation "$DEEPSPEED" >"$log" 2>&1 ||
    { grep -v '^WARNING' "$log" | tail -5 >&2; echo "error: pip could not install DeepSpeed; run again when that is mended" >&2; exit 1; }
  printf '\033[1mCompiling its operator: a minute\033[0m\n' >&2
  "$VENV/bin/python" -c 'from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder as Op; Op().load()' >"$log" 2>&1 ||
    { tail -5 "$log" >&2; echo "error: DeepSpeed's operator could not be compiled; its last words are above" >&2; exit 1; }
  touch "$stamp"
fi
exec "$VENV/bin/python" -m pytest -m deepspeed tests/dart_train/trainer/test_trainer_zero.py "$@"
