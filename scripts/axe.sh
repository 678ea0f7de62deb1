#!/usr/bin/env bash
# Hold the page against axe-core's rules of accessibility, in Chromium. Needs npm, for the tests alone: nothing is shipped.
# Idempotent: what is installed is stamped with the lock that it was made from. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

FOLDER=.venv-axe
stamp=$(stamp "$FOLDER" tests/dart_agent/viewer/accessibility/package-lock.json)
if [ ! -e "$stamp" ]; then
  command -v npm >/dev/null || die "npm is missing" "apt install npm"
  say "Installing axe-core into $FOLDER"
  mkdir -p "$FOLDER"
  cp tests/dart_agent/viewer/accessibility/package*.json "$FOLDER"
  npm --prefix "$FOLDER" ci --silent --no-fund --no-audit --ignore-scripts
  touch "$stamp"
fi
.venv/bin/python -m pytest -m axe tests/dart_agent/viewer "$@"
