#!/usr/bin/env bash
# Run `make test-PART` for each part that is named, to the end even where one fails, and say how long each took.
#   parts.sh PART... [-- PART...]   those behind `--`, which wait more than they compute, two at a time: name long ones first
# The output of a part that runs beside another is shown when that part has ended.
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

alone=() paired=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do alone+=("$1"); shift; done
[ $# -eq 0 ] || paired=("${@:2}")
ENDED=$(mktemp -d)   # a file for each part: its line of the table below
trap 'rm -rf "$ENDED"' EXIT
trap 'trap - TERM; kill 0' INT TERM   # jobs in the background ignore Ctrl-C

run() {  # run PART
  local started=$SECONDS outcome=passed
  say "make test-$1"
  make --no-print-directory "test-$1" || outcome=FAILED
  printf '%-10s %s in %d s\n' "$1" "$outcome" $((SECONDS - started)) >"$ENDED/$1"
}

for part in "${alone[@]}"; do run "$part"; done
running=0
for part in "${paired[@]}"; do
  if [ "$running" -eq 2 ]; then wait -n; running=1; fi
  { output=$(run "$part" 2>&1 </dev/null); printf '%s\n' "$output"; } &
  running=$((running + 1))
done
wait
for part in "${alone[@]}" "${paired[@]}"; do cat "$ENDED/$part"; done
! grep -q FAILED "$ENDED"/*
