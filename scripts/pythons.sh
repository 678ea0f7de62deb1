#!/usr/bin/env bash
# Unit tests at both ends of what the packages promise: on the oldest Python with the oldest packages that pyproject.toml
# allows, and on the newest Python with the locked ones. Packages have no part in formats, which are text alone: those are
# tested on the newest Python only, and tests of dart_train are not, since torch has no wheel for every Python everywhere.
# The laboratory and the repository's own rules are for one Python. Each test runs with the first of its parameters: what a
# Python or a package changes, it changes for all of them.
#   pythons.sh MARKERS     the marker expression of the unit tests
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

run() {  # run PYTHON LOCK TESTS... : in an environment of its own
  local version=$1 lock=$2 venv=.venv-$1-$2 python stamp
  shift 2
  stamp=$(stamp "$venv" pyproject.toml requirements/test.txt "requirements/$lock.txt" scripts/pythons.sh)
  if [ ! -e "$stamp" ]; then
    python=$(find_python "$version")
    [ -n "$python" ] || die "there is no Python $version here" "install it with its module venv, by pyenv for example"
    make_venv "$venv" "$python"
    install "$venv" requirements/test.txt
    if [ "$lock" != test ]; then
      install "$venv" "requirements/$lock.txt"   # over those
      install_torch "$venv" "requirements/$lock.txt"
      check_torch "$venv"
    fi
    install_project "$venv"
    touch "$stamp"
  fi
  say "Python $version with requirements/$lock.txt"
  REPORTS="build/python$version" "$venv/bin/python" scripts/run_tests.py -n "$(nproc)" --dist worksteal \
    --hypothesis-profile unit --one-parameter -m "$MARKERS" "$@"
}

MARKERS=$1
run 3.11 floors tests/dart_gym tests/dart_agent tests/dart_train --ignore tests/dart_agent/formats
run 3.13 test tests/dart_gym tests/dart_agent
