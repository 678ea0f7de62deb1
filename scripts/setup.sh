#!/usr/bin/env bash
# Set up everything that `make quickstart` needs: Debian packages (only those missing), .venv from requirements/train.txt
# and the build of torch that fits this machine (torch.sh), which is tried at the end.
#   setup.sh unit    has the packages of requirements/test.txt instead, for `make test-unit`
#   setup.sh apps    adds what OSWorld's tasks need: their applications, Python packages for the desktop, the evaluator
#   setup.sh test    adds to both what `make test` needs: a database server
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
# Of the database the programs alone: tests start a server of their own. Qt is what windows of tests are made with.
TEST_PACKAGES=(mariadb-server-core mariadb-client-core strace python3-pyqt5)

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
  local missing=() package sudo=() asked
  for package in "$@"; do installed "$package" || missing+=("$package"); done
  if ! browser; then
    if grep -qs '^ID=ubuntu' /etc/os-release; then
      die "this machine has no Chromium that can run in a sandbox (Ubuntu ships it as a snap)" \
          "install Google Chrome's .deb, or any Chromium build, and run again;" \
          "DART_GYM_CHROMIUM=/path/to/chrome names one that is not on the PATH"
    fi
    missing+=(chromium)
  fi
  any_python && has_venv "$PYTHON" || missing+=(python3-venv)
  [ ${#missing[@]} -eq 0 ] && return 0
  command -v apt-get >/dev/null || die "missing programs, and this is no Debian or Ubuntu: ${missing[*]}" \
    "install their like with your package manager and run again"
  asked=("ask an administrator to run: apt-get install --no-install-recommends ${missing[*]}" "then run this again")
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "missing Debian packages, and neither root nor sudo is at hand" "${asked[@]}"
    sudo=(sudo)
  fi
  say "Installing Debian packages: ${missing[*]}"
  # Not `sudo -v`, which asks for a password where a command needs none. What sudo says is shown.
  "${sudo[@]}" true || die "sudo does not let you install the missing Debian packages" "${asked[@]}"
  # A new machine may be updating itself just now: apt waits for that.
  local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300)
  local install=("${apt[@]}" install -y -qq --no-install-recommends "${missing[@]}")
  "${sudo[@]}" dpkg --configure -a >/dev/null 2>&1 || true   # a package manager that was interrupted the last time
  quietly "${sudo[@]}" "${install[@]}" && return
  quietly "${sudo[@]}" "${apt[@]}" update -qq && quietly "${sudo[@]}" "${install[@]}" ||
    failed "apt could not install: ${missing[*]}" "its last words are above; mend that and run again"
}

has_venv() { "$1" -c 'import venv, ensurepip' 2>/dev/null; }

# any_python: PYTHON is one that is new enough; false where there is none. One that can make environments comes first:
# a python3.13 that was installed without python3.13-venv is no reason to leave Debian's python3 unused.
any_python() {
  local name found=()
  for name in "${PYTHONS[@]}"; do
    command -v "$name" >/dev/null 2>&1 &&
      "$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2])' 2>/dev/null || continue
    found+=("$name")
    has_venv "$name" && { PYTHON=$name; return 0; }
  done
  [ ${#found[@]} -gt 0 ] && PYTHON=${found[0]}
}

# Whether the commands of .venv start this directory's Python. Those of a copy would start the original's, with its code.
made_here() { [ -x "$VENV/bin/dart-train" ] && head -2 "$VENV/bin/dart-train" | grep -qaF "$(pwd -P)/$VENV/bin/python"; }

# locked NAME : the packages of requirements/NAME.txt in .venv, and the project itself, which a stamp then says.
locked() {
  local stamp
  stamp="$VENV/.dart-setup-$1-$(cat pyproject.toml requirements/{"$1",torch}.txt scripts/{setup,common,torch,indexes}.sh | sha256sum | cut -c1-16)"
  [ -e "$stamp" ] && made_here && "$VENV/bin/python" -c '' 2>/dev/null && return 0
  need_space 3000 "the Python packages"
  if [ -e "$VENV/bin/dart-train" ] && ! made_here; then
    say "Making $VENV anew: it belongs to another directory, from which this one was moved or copied"
    make_venv "$VENV" "$PYTHON"
  elif ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
    say "Making $VENV"
    make_venv "$VENV" "$PYTHON"
  fi
  say "Installing the Python packages of requirements/$1.txt"
  install "$VENV" "requirements/$1.txt"
  [ "$1" = docs ] || install_torch "$VENV" "requirements/$1.txt"
  install_project "$VENV"
  [ "$1" = docs ] || check_torch "$VENV"
  rm -f "$VENV/.dart-setup-$1-"*
  touch "$stamp"
}

# Packages that Debian lacks, for programs on the desktop (which run on Debian's Python): pure Python, pinned.
install_desktop_python() {
  local place=${DART_GYM_DESKTOP_PYTHON:-${XDG_DATA_HOME:-$HOME/.local/share}/dart-gym/desktop-python} stamp new
  stamp=.stamp-$(sha256sum <requirements/desktop.txt | cut -c1-16)
  [ -e "$place/$stamp" ] && return 0
  say "Installing the Python packages of the desktop"
  mkdir -p "$(dirname "$place")" && [ -w "$(dirname "$place")" ] || die "$(dirname "$place") cannot be written to" \
    "let DART_GYM_DESKTOP_PYTHON name another directory, now and whenever a desktop is started"
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
  "" | unit | apps | test | docs) ;;
  *) die "there is no set-up named $1" "choose: apps (the applications of OSWorld), unit, test, docs, or nothing" ;;
esac
PYTHONS=(python3.13 python3.12 python3.11 python3)
if [ -n "${PYTHON:-}" ]; then PYTHONS=("$PYTHON"); any_python || die "$PYTHON, which PYTHON names, is no Python 3.11 or newer"; fi
apt_install "${APT_PACKAGES[@]}"                           # a look at dpkg's data base when nothing is missing
any_python || die "no Python 3.11 or newer found" "install one (Debian 12 and Ubuntu 24.04 have it) and run again"
case ${1:-} in
  "") locked train ;;
  unit) locked test ;;
  apps) locked train; setup_apps ;;
  test) locked test; setup_apps "${TEST_PACKAGES[@]}" ;;
  docs) locked train; locked docs ;;
esac
