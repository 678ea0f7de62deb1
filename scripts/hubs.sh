#!/usr/bin/env bash
# Run the tests of the hubs' own packages, in Python environments of their own: they bring hundreds of others, which must
# not decide the versions of ours, nor agree with each other's. Idempotent: an environment is stamped with what it was
# made from. HUBS="first verifiers" names those to run. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

# hub NAME PACKAGES TESTS [torch] : make the environment of a lock with some of `integrations`, and run its tests there.
hub() {
  local name=$1 venv=.venv-hubs${1:+-$1} lock=requirements/hubs${1:+-$1}.txt package stamp tests=()
  stamp=$(stamp "$venv" pyproject.toml "$lock" scripts/hubs.sh)
  if [ ! -e "$stamp" ]; then
    say "Installing $lock into $venv"
    make_venv "$venv"
    if [ "${4:-}" ]; then install_torch "$venv"; fi
    install "$venv" "$lock"
    install_project "$venv"
    for package in $2; do run_pip "$venv" --no-deps --no-build-isolation -e "integrations/$package"; done
    touch "$stamp"
  fi
  for package in $3; do tests+=("tests/hubs/test_${package}_hub.py"); done
  "$venv/bin/python" -m pytest -m hubs "${tests[@]}" "${arguments[@]}"
}

arguments=("$@")
for name in ${HUBS-first verifiers inspect}; do
  case $name in
    first) hub "" "gymnasium trl" "mcp gymnasium trl" torch ;;
    verifiers) hub verifiers verifiers verifiers ;;
    inspect) hub inspect inspect inspect ;;
    *) die "there is no hub $name" "hubs: first verifiers inspect" ;;
  esac
done
