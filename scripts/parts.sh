#!/usr/bin/env bash
# Run `make test-PART` for each part that is named, to the end even where one fails, and say how long each took.
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

report=() status=0
for part in "$@"; do
  say "make test-$part"
  started=$SECONDS
  if make --no-print-directory "test-$part"; then outcome=passed; else outcome=FAILED status=1; fi
  report+=("$(printf '%-10s %s in %d s' "$part" "$outcome" $((SECONDS - started)))")
done
printf '%s\n' "${report[@]}"
exit "$status"
