#!/usr/bin/env bash
# Build sdist and wheel into build/dist, and the wheel of the demo models beside them; check them as an index would, and
# install the wheel twice: as `pip install dart-gui` does, with the light dependencies alone, and as `dart-gui[train]`.
# The tests of tests/package live there, in empty directories. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

TWINE=.venv-package LIGHT=.venv-light TRAIN=.venv-train DIST=build/dist
stamp=$(stamp "$TWINE" requirements/package.txt scripts/package.sh)
if [ ! -e "$stamp" ]; then
  make_venv "$TWINE"
  install "$TWINE" requirements/package.txt
  touch "$stamp"
fi
rm -rf "$DIST"
say "Building $DIST"
# The wheel is made of the sdist: what that lacks is missing in both.
.venv/bin/uv build -q --no-build-isolation --python .venv/bin/python --out-dir "$DIST" .
.venv/bin/uv build -q --wheel --no-build-isolation --python .venv/bin/python --out-dir "$DIST" integrations/demo_models
rm -rf integrations/demo_models/{build,*.egg-info}
"$TWINE/bin/python" -m twine check --strict "$DIST"/*
make_venv "$LIGHT"
install "$LIGHT" requirements/base.txt
run_pip "$LIGHT" --no-deps --force-reinstall "$DIST"/dart_gui-*.whl   # else the egg-info of this folder counts as installed

# The packages of [train] are put there first, locked and in the build of torch that belongs on this machine. Then pip
# reads what the wheel asks for: it would fetch what the locks forgot, and stop at what contradicts them.
stamp=$(stamp "$TRAIN" requirements/{train,torch}.txt scripts/{package,torch}.sh)
if [ ! -e "$stamp" ]; then
  need_space 3000 "the trainer's packages"
  make_venv "$TRAIN"
  install "$TRAIN" requirements/train.txt
  install_torch "$TRAIN" requirements/train.txt
  touch "$stamp"
fi
run_pip "$TRAIN" "$(echo "$DIST"/dart_gui-*.whl)[train]"
run_pip "$TRAIN" --no-deps --force-reinstall "$DIST"/dart_gui-*.whl   # the same version, built anew
DART_LIGHT_PYTHON=$PWD/$LIGHT/bin/python DART_TRAIN_PYTHON=$PWD/$TRAIN/bin/python \
  .venv/bin/python -m pytest -m package tests/package "$@"
