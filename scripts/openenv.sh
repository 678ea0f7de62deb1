#!/usr/bin/env bash
# Run the tests of OpenEnv's own client, in a Python environment of its own: openenv-core brings some seventy packages,
# which must not decide the versions of ours. Idempotent: the environment is stamped with what it was made from.
# `openenv.sh install` makes the environment only.
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=.venv-openenv
stamp="$VENV/.stamp-$(cat pyproject.toml scripts/openenv.sh | sha256sum | cut -c1-16)"
if [ ! -e "$stamp" ]; then
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  printf '\033[1mInstalling OpenEnv\x27s client\033[0m\n' >&2
  rm -rf "$VENV"
  .venv/bin/python -m venv "$VENV"
  "$VENV/bin/python" -m pip install --disable-pip-version-check -q \
      -e . 'openenv-core>=0.3,<0.4' pytest pytest-asyncio pytest-timeout hypothesis >"$log" 2>&1 ||
    { grep -v '^WARNING' "$log" | tail -5 >&2; echo "error: pip could not install openenv-core; run again when that is mended" >&2; exit 1; }
  touch "$stamp"
fi
[ "${1:-}" != install ] || exit 0
exec "$VENV/bin/python" -m pytest -m openenv tests/dart_gym/cluster/test_openenv_client.py "$@"
