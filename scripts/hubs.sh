#!/usr/bin/env bash
# Run the tests of the hubs' own packages, in a Python environment of its own: they bring a hundred others, which must not
# decide the versions of ours. Idempotent: the environment is stamped with what it was made from. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

VENV=.venv-hubs
stamp=$(stamp "$VENV" pyproject.toml requirements/hubs.txt scripts/hubs.sh)
if [ ! -e "$stamp" ]; then
  say "Installing the hubs' packages into $VENV"
  make_venv "$VENV"
  install_torch "$VENV"
  install "$VENV" requirements/hubs.txt
  install_project "$VENV"
  for package in integrations/*/; do run_pip "$VENV" --no-deps --no-build-isolation -e "$package"; done
  touch "$stamp"
fi
"$VENV/bin/python" -m pytest -m hubs tests/hubs "$@"
