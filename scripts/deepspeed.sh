#!/usr/bin/env bash
# Run the tests marked `deepspeed` in an environment that is .venv plus DeepSpeed: the package has no wheels, is built
# when it is installed, and compiles an operator when its engine is first made, which not everybody's .venv shall wait
# for. On a CPU: its ranks talk by gloo. Idempotent: the environment is stamped with what it was made from.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

VENV=.venv-deepspeed
stamp=$(stamp "$VENV" requirements/{test,build,deepspeed}.txt scripts/deepspeed.sh)

export DS_ACCELERATOR=cpu DS_BUILD_OPS=0 OMP_NUM_THREADS=1
export TORCH_EXTENSIONS_DIR="$PWD/$VENV/extensions"
export PATH="$PWD/$VENV/bin:$PATH"   # ninja

packages() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

if [ ! -e "$stamp" ]; then
  say "Installing DeepSpeed into $VENV"
  command -v g++ >/dev/null || die "DeepSpeed compiles an operator and there is no g++" "install it (Debian: g++)"
  make_venv "$VENV"
  echo "import site; site.addsitedir('$(packages .venv)')" >"$(packages "$VENV")/dart.pth"   # what .venv has, torch before all
  install "$VENV" requirements/build.txt
  run_pip "$VENV" --no-deps --no-build-isolation -r requirements/deepspeed.txt
  say "Compiling its operator: a minute"
  "$VENV/bin/python" -c 'from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder as Op; Op().load()' >"$LOG" 2>&1 ||
    { tail -5 "$LOG" >&2; die "DeepSpeed's operator could not be compiled" "its last words are above"; }
  touch "$stamp"
fi
"$VENV/bin/python" -m pytest -m deepspeed tests/dart_train/trainer/test_trainer_zero.py "$@"
