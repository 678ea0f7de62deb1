#!/usr/bin/env bash
# Run the tests marked `security` as the user who calls; as root, once more as an ordinary user: what a desktop can reach
# differs between the two, and both are ways in which a server is started. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

tests=(-m "security and not slow" --timeout 300 "$@")
[ $# -gt 0 ] || tests+=(tests)
status=0
say "Security, as $(id -un)"
.venv/bin/python -m pytest "${tests[@]}" || status=1
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
chown -R "$DART_USER:$DART_USER" "$home"
export PREFIX USER_HOME=$home DART_USER
PREFIX=$(.venv/bin/python -c 'import sys; print(sys.base_prefix)')
unshare --mount bash -c '
  set -euo pipefail
  case $PREFIX in "$HOME"/*)
    mkdir "$USER_HOME/.prefix" && mount --bind "$PREFIX" "$USER_HOME/.prefix"
    mount -t tmpfs -o mode=755 none "$HOME"
    mkdir -p "$PREFIX" && mount --move "$USER_HOME/.prefix" "$PREFIX" ;;
  esac
  cp /etc/passwd "$USER_HOME/.passwd" && echo "ordinary:x:$DART_USER:$DART_USER::$USER_HOME:/bin/sh" >>"$USER_HOME/.passwd"
  mount --bind "$USER_HOME/.passwd" /etc/passwd
  exec setpriv --reuid="$DART_USER" --regid="$DART_USER" --clear-groups --inh-caps=-all --bounding-set=-all \
    env -u XDG_RUNTIME_DIR HOME="$USER_HOME" USER=ordinary PYTHONDONTWRITEBYTECODE=1 HYPOTHESIS_STORAGE_DIRECTORY="$USER_HOME/hypothesis" \
    .venv/bin/python -m pytest -p no:cacheprovider --basetemp "$USER_HOME/pytest" "$@"
' security "${tests[@]}" || status=1
exit "$status"
