#!/usr/bin/env bash
# Set up everything that `make quickstart` needs: Debian packages (only those missing), and .venv from requirements/train.txt.
#   setup.sh apps    adds what OSWorld's tasks need: their applications, Python packages for the desktop, the evaluator
#   setup.sh test    adds to that what `make test` needs: a database server, and requirements/test.txt
#   setup.sh docs    adds what the documentation site is made with
# Idempotent: a finished set-up is stamped with a hash of what it was made from, and then this returns at once,
# without touching the network. An interrupted one is simply continued.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

VENV=.venv
APT_PACKAGES=(
  xvfb openbox bubblewrap libseccomp2 dbus x11-utils x11-xserver-utils xdotool fonts-dejavu-core python3
  zenity mousepad
)
TEST_PACKAGES=(mariadb-server-core mariadb-client-core strace)   # the server's programs alone: tests start one of their own

installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

browser() {  # a Chromium that is a program of its own; Ubuntu's `chromium` is a snap, which no sandbox can start
  local name path
  for name in "${DART_GYM_CHROMIUM:-}" chromium chromium-browser google-chrome-stable google-chrome; do
    [ -n "$name" ] && path=$(command -v "$name") || continue
    case $(readlink -f "$path") in */snap | */snap/*) continue ;; esac
    head -c 4096 "$path" | grep -aq /snap/bin/ && continue   # Ubuntu's script that starts the snap
    return 0
  done
  return 1
}

apt_install() {
  local missing=() package sudo=()
  for package in "$@"; do installed "$package" || missing+=("$package"); done
  if ! browser; then
    if grep -qs '^ID=ubuntu' /etc/os-release; then
      die "this machine has no Chromium that can run in a sandbox (Ubuntu ships it as a snap)" \
          "install Google Chrome's .deb, or any Chromium build, and run again;" \
          "DART_GYM_CHROMIUM=/path/to/chrome names one that is not on the PATH"
    fi
    missing+=(chromium)
  fi
  "$PYTHON" -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3-venv)
  [ ${#missing[@]} -eq 0 ] && return 0
  command -v apt-get >/dev/null || die "missing programs, and this is no Debian or Ubuntu: ${missing[*]}" \
    "install their like with your package manager and run again"
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "missing Debian packages, and neither root nor sudo is at hand" \
      "ask an administrator to run: apt-get install --no-install-recommends ${missing[*]}" "then run this again"
    sudo=(sudo)
  fi
  say "Installing Debian packages: ${missing[*]}"
  local install=(env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}")
  "${sudo[@]}" dpkg --configure -a >/dev/null 2>&1 || true   # a package manager that was interrupted the last time
  if ! "${sudo[@]}" "${install[@]}" >"$LOG" 2>&1; then
    "${sudo[@]}" apt-get update -qq >"$LOG" 2>&1 && "${sudo[@]}" "${install[@]}" >>"$LOG" 2>&1 ||
      { tail -5 "$LOG" >&2; die "apt could not install: ${missing[*]}" "its last words are above; mend that and run again"; }
  fi
}

any_python() {
  local name
  for name in "${PYTHON:-}" python3.13 python3.12 python3.11 python3; do
    [ -n "$name" ] && command -v "$name" >/dev/null 2>&1 &&
      "$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2])' 2>/dev/null && { PYTHON=$name; return 0; }
  done
  die "no Python 3.11 or newer found" "install it (Debian 12: apt-get install python3 python3-venv) and run again"
}

# locked NAME : the packages of requirements/NAME.txt in .venv, and the project itself, which a stamp then says.
locked() {
  local stamp
  stamp="$VENV/.dart-setup-$1-$(cat pyproject.toml "requirements/$1.txt" scripts/setup.sh scripts/common.sh | sha256sum | cut -c1-16)"
  [ -e "$stamp" ] && [ -x "$VENV/bin/dart-train" ] && "$VENV/bin/python" -c '' 2>/dev/null && return 0
  need_space 3000 "the Python packages"
  if ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
    say "Making $VENV"
    make_venv "$VENV" "$PYTHON"
  fi
  install_torch "$VENV"
  say "Installing the Python packages of requirements/$1.txt"
  install "$VENV" "requirements/$1.txt"
  install_project "$VENV"
  rm -f "$VENV/.dart-setup-$1-"*
  touch "$stamp"
}

# Packages that Debian lacks, for programs on the desktop (which run on Debian's Python): pure Python, pinned.
install_desktop_python() {
  local place=${DART_GYM_DESKTOP_PYTHON:-${XDG_DATA_HOME:-$HOME/.local/share}/dart-gym/desktop-python} stamp new
  stamp=.stamp-$(sha256sum <requirements/desktop.txt | cut -c1-16)
  [ -e "$place/$stamp" ] && return 0
  say "Installing the Python packages of the desktop"
  mkdir -p "$(dirname "$place")"
  rm -rf "$place".new.*                                    # of a set-up that was interrupted
  new=$(mktemp -d "$place.new.XXXXXX")
  run_pip "$VENV" --no-deps --target "$new" -r requirements/desktop.txt
  /usr/bin/python3 -m compileall -q "$new" || die "/usr/bin/python3 could not compile $new" "run: apt-get install python3"
  touch "$new/$stamp"
  chmod 755 "$new"
  rm -rf "$place"
  mv "$new" "$place"
}

setup_apps() {  # setup_apps PACKAGE... : and these Debian packages
  # shellcheck disable=SC2046  # one word each
  apt_install $("$VENV/bin/python" dart_gym/desktops/applications/debian_applications.py packages) "$@"
  install_desktop_python
  if [ -x scripts/evaluator.sh ]; then scripts/evaluator.sh; fi
}

case ${1:-} in
  "" | apps | test | docs) ;;
  *) die "there is no set-up named $1" "choose: apps (the applications of OSWorld), test, docs, or nothing" ;;
esac
any_python
apt_install "${APT_PACKAGES[@]}"                           # a look at dpkg's data base when nothing is missing
case ${1:-} in
  "") locked train ;;
  apps) locked train; setup_apps ;;
  test) locked test; setup_apps "${TEST_PACKAGES[@]}" ;;
  docs) locked train; locked docs ;;
esac
