#!/usr/bin/env bash
# Run the tests of OpenEnv's own client, in a Python environment of its own: openenv-core brings some seventy packages,
# which must not decide the versions of ours. Idempotent: the environment is stamped with what it was made from.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

VENV=.venv-openenv
stamp=$(stamp "$VENV" pyproject.toml requirements/openenv.txt integrations/openenv{,_port}/pyproject.toml scripts/openenv.sh)
if [ ! -e "$stamp" ]; then
  say "Installing OpenEnv's client into $VENV"
  make_venv "$VENV"
  install "$VENV" requirements/openenv.txt
  install_project "$VENV"
  for package in openenv openenv_port; do run_pip "$VENV" --no-deps --no-build-isolation -e "integrations/$package"; done
  touch "$stamp"
fi
REPORTS=build/openenv "$VENV/bin/python" scripts/run_tests.py -m openenv tests/dart_gym/cluster/server/test_openenv_{client,environment}.py "$@"
