#!/usr/bin/env bash
# Run the tests marked `security` as the user who calls; as root, those with a desktop once more as an ordinary user: what
# a desktop can reach differs between the two, and both are ways in which a server is started. Three at a time, since most
# wait; the two tenants alone, since one's speed is measured. Arguments go to pytest instead.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

TENANTS=tests/security/test_two_tenants.py
status=0
say "Security, as $(id -un)"
if [ $# -gt 0 ]; then
  .venv/bin/python -m pytest -m "security and not slow" --timeout 300 "$@" || status=1
else
  REPORTS=build/security .venv/bin/python scripts/run_tests.py -m "security and not slow" --timeout 300 -n 3 --dist loadfile \
    --ignore "$TENANTS" tests/security || status=1
  REPORTS=build/tenants .venv/bin/python scripts/run_tests.py -m "not slow" --timeout 300 "$TENANTS" || status=1
fi
[ "$(id -u)" -eq 0 ] || exit "$status"

# An ordinary user needs to reach the interpreter, which may lie in root's home: that is laid bare down to it, in a mount
# namespace that ends with the tests, and nothing else of it.
say "Security, as an ordinary user"
DART_USER=${DART_USER:-65533}
home=$(mktemp -d /tmp/dart-security.XXXXXX)
trap 'rm -rf --one-file-system "$home"' EXIT
share=.local/share/dart-gym   # what `make apps` has put there for desktops
if [ -d "$HOME/$share/desktop-python" ]; then
  mkdir -p "$home/$share" && cp -r "$HOME/$share/desktop-python" "$home/$share/"
fi
EVALUATOR=$HOME/$share/evaluator-1.0.2   # large: it is mounted there
mkdir -p "$home/$share/${EVALUATOR##*/}"
chown -R "$DART_USER:$DART_USER" "$home"
export PREFIX USER_HOME=$home DART_USER TENANTS EVALUATOR USER_EVALUATOR=$home/$share/${EVALUATOR##*/}
PREFIX=$(.venv/bin/python -c 'import sys; print(sys.base_prefix)')
unshare --mount bash -c '
  set -euo pipefail
  [ ! -d "$EVALUATOR" ] || mount --bind -o ro "$EVALUATOR" "$USER_EVALUATOR"
  case $PREFIX in "$HOME"/*)
    mkdir "$USER_HOME/.prefix" && mount --bind "$PREFIX" "$USER_HOME/.prefix"
    mount -t tmpfs -o mode=755 none "$HOME"
    mkdir -p "$PREFIX" && mount --move "$USER_HOME/.prefix" "$PREFIX" ;;
  esac
  cp /etc/passwd "$USER_HOME/.passwd" && echo "ordinary:x:$DART_USER:$DART_USER::$USER_HOME:/bin/sh" >>"$USER_HOME/.passwd"
  mount --bind "$USER_HOME/.passwd" /etc/passwd
  ordinary() {  # pytest options
    setpriv --reuid="$DART_USER" --regid="$DART_USER" --clear-groups --inh-caps=-all --bounding-set=-all \
      env -u XDG_RUNTIME_DIR HOME="$USER_HOME" USER=ordinary PYTHONDONTWRITEBYTECODE=1 HYPOTHESIS_STORAGE_DIRECTORY="$USER_HOME/hypothesis" \
      REPORTS="$USER_HOME/reports" \
      .venv/bin/python scripts/run_tests.py --basetemp "$USER_HOME/pytest" --timeout 300 -m "security and desktop and not slow" "$@"
  }
  if [ $# -gt 0 ]; then ordinary "$@"; exit; fi
  status=0
  ordinary -n 3 --dist loadfile --ignore "$TENANTS" tests/security || status=1
  # Who started the server decides what a desktop may kill, and what holds its processes, memory and files within bounds.
  ordinary "$TENANTS" -k "forks or memory or disks or kills" || status=1
  exit "$status"
' security "$@" || status=1
exit "$status"
