#!/usr/bin/env bash
# Run the tests of the hubs' own packages, in Python environments of their own: they bring hundreds of others, which must
# not decide the versions of ours, nor agree with each other's. Idempotent: an environment is stamped with what it was
# made from. HUBS="verifiers trl" names those to run. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

ALL="mcp gymnasium trl sft verifiers inspect harbor nemo"

# environment VENV LOCK PACKAGES [torch|PYTHON] : the packages of a lock, this project and some of `integrations`.
environment() {
  local venv=$1 lock=requirements/$2.txt package stamp
  stamp=$(stamp "$venv" pyproject.toml "$lock" scripts/hubs.sh $(printf 'integrations/%s/pyproject.toml ' $3))
  if [ -e "$stamp" ]; then return; fi
  say "Installing $lock into $venv"
  case ${4:-} in
    torch) make_venv "$venv"; install "$venv" "$lock"; install_torch "$venv" "$lock"; check_torch "$venv" ;;
    *) make_venv "$venv" "${4:-}"; install "$venv" "$lock" ;;
  esac
  if [ "$2" != hubs-harbor ]; then install_project "$venv"; fi
  for package in $3; do run_pip "$venv" --no-deps --no-build-isolation -e "integrations/$package"; done
  touch "$stamp"
}

# play VENV HUB... : their tests.
play() {
  local venv=$1 hub tests=(); shift
  for hub in "$@"; do tests+=("tests/hubs/test_${hub}_hub.py"); done
  "$venv/bin/python" -m pytest -m hubs "${tests[@]}" "${arguments[@]}"
}

newer_python() {
  python=$(find_python 3.12 3.13)
  [ -n "$python" ] || die "$hub needs Python 3.12 or 3.13" "install one (apt, pyenv), or name other hubs: HUBS=\"mcp trl\""
}

arguments=("$@")
for hub in ${HUBS:=$ALL}; do
  [[ " $ALL " == *" $hub "* ]] || die "there is no hub '$hub'" "hubs: $ALL"
done
first=()
for hub in $HUBS; do
  case $hub in
    verifiers | inspect) environment ".venv-hubs-$hub" "hubs-$hub" "$hub"; play ".venv-hubs-$hub" "$hub" ;;
    nemo)
      newer_python
      # omegaconf needs a version of this one that was never published as a wheel
      SOURCES=antlr4-python3-runtime environment .venv-hubs-nemo hubs-nemo nemo_gym "$python"
      play .venv-hubs-nemo nemo
      ;;
    *) first+=("$hub") ;;
  esac
done
if [ ${#first[@]} -gt 0 ]; then
  environment .venv-hubs hubs "gymnasium trl harbor" torch
  if [[ " ${first[*]} " == *" harbor "* ]]; then
    newer_python
    environment .venv-hubs-harbor hubs-harbor harbor "$python"
  fi
  play .venv-hubs "${first[@]}"
fi
