#!/usr/bin/env bash
# Do on a bare machine what the README tells a stranger to do: `make quickstart` up to the first update, `make test-unit`.
# The machine is a Debian that has nothing but its base system, in a folder: with file system, users, processes and /dev of
# its own, and with the network of this one, but none of its pip settings. Root only; needs debootstrap and git.
#   bare_machine.sh SUITE root|user [COMMAND]     SUITE: bookworm, trixie; or what debootstrap knows with its MIRROR
# An ordinary `user` has no sudo: an administrator runs the command that set-up names, then the user runs it again.
# COMMAND is run there instead, in the clone, after the set-up. Variables:
#   DIR=/var/tmp/dart-bare    where base systems and machines are kept
#   TMP_OPTIONS=mode=1777     of the machine's /tmp, such as mode=1777,noexec
#   KEEP=1                    leave the machine there afterwards
#   REUSE=1                   go on with one that was left there, with its clone brought up to date
#   MIRROR, KEYRING           for debootstrap
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

SUITE=${1:-} WHO=${2:-} COMMAND=${3:-}
DIR=${DIR:-/var/tmp/dart-bare}
case $WHO in root) HOME_THERE=/root ;; user) HOME_THERE=/home/user ;; *) die "usage: $0 SUITE root|user [COMMAND]" ;; esac
[ "$(id -u)" -eq 0 ] || die "a machine in a folder needs root" "run it as root"
command -v debootstrap >/dev/null || die "debootstrap is missing" "apt-get install debootstrap"
BASE=$DIR/base-$SUITE
MACHINE=$DIR/$SUITE-$WHO

timed() {  # timed WHAT COMMAND...
  local what=$1 started=$SECONDS status=0; shift
  "$@" || status=$?
  say "$SUITE, $WHO: $what took $((SECONDS - started)) s, exit status $status"
  return "$status"
}

base_system() {
  [ -e "$BASE/etc/os-release" ] && return 0
  rm -rf --one-file-system "$BASE.new"
  mkdir -p "$DIR"
  quietly debootstrap --variant=minbase ${KEYRING:+--keyring="$KEYRING"} "$SUITE" "$BASE.new" ${MIRROR:+"$MIRROR"} ||
    failed "debootstrap could not make a base system of $SUITE"
  mv "$BASE.new" "$BASE"
}

# What the network of this machine needs, and nothing else of its settings: names, certificates, proxies, a mirror.
network() {
  cp -L /etc/resolv.conf "$MACHINE/etc/resolv.conf"
  apt-config dump 2>/dev/null | grep -E '^Acquire::(Check-|http|https|Retries)' >"$MACHINE/etc/apt/apt.conf.d/99network" || :
  NETWORK=()
  if [ -s "${CA_FILE:=/etc/ssl/certs/ca-certificates.crt}" ]; then
    cp -L "$CA_FILE" "$MACHINE/opt/certificates.crt"
    NETWORK+=(PIP_CERT=/opt/certificates.crt)
  fi
  local name
  for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY PIP_INDEX_URL UV_INDEX_URL; do
    [ -z "${!name:-}" ] || NETWORK+=("$name=${!name}")
  done
}

as() {  # as root|user COMMAND : a shell's line in the clone on the machine; as at a login, but for what the network needs
  local home=/root ids=(--reuid=0 --regid=0)
  [ "$1" = root ] || { home=/home/user; ids=(--reuid=1000 --regid=1000 --inh-caps=-all --bounding-set=-all); }
  # shellcheck disable=SC2016  # the inner shell's
  unshare --mount --pid --ipc --uts --fork --kill-child bash -c '
    set -eu
    root=$1 home=$2 line=$3 tmp=$4; shift 4
    mount --make-rprivate /
    mount --bind "$root" "$root"
    cd "$root"
    mount -t proc -o nosuid,nodev,noexec proc proc
    mount -t sysfs -o ro,nosuid,nodev,noexec sysfs sys
    mount -t tmpfs -o mode=755,nosuid dev dev
    mkdir dev/pts dev/shm
    for device in null zero full random urandom tty; do touch "dev/$device"; mount --bind "/dev/$device" "dev/$device"; done
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
    ln -s pts/ptmx dev/ptmx; ln -s /proc/self/fd dev/fd
    for n in 0 1 2; do ln -s "/proc/self/fd/$n" "dev/$(echo "stdin stdout stderr" | cut -d" " -f$((n + 1)))"; done
    mount -t tmpfs -o mode=1777,nosuid,nodev shm dev/shm
    mount -t tmpfs -o mode=755,nosuid,nodev run run
    mount -t tmpfs -o "nosuid,nodev,$tmp" tmp tmp
    mkdir -p run/old
    pivot_root . run/old
    cd /
    umount -l /run/old
    rmdir /run/old
    cd "$home/dart"; exec "$@" /bin/bash -c "$line"
  ' machine "$MACHINE" "$home" "$2" "${TMP_OPTIONS:-mode=1777}" \
    setpriv "${ids[@]}" --clear-groups env -i "HOME=$home" "USER=$1" "LOGNAME=$1" TERM=dumb SHELL=/bin/bash \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "${NETWORK[@]}" </dev/null
}

set_up() {  # set_up TARGET : as the README says; an ordinary user passes on what is asked for
  local said wanted status=0
  said=$(as "$WHO" "make $1" 2>&1) || status=$?
  printf '%s\n' "$said"
  [ "$status" -ne 0 ] && [ "$WHO" = user ] || return "$status"
  wanted=$(sed -n 's/.*ask an administrator to run: //p' <<<"$said")
  [ -n "$wanted" ] || return "$status"
  say "$SUITE: an administrator runs $wanted"
  as root "DEBIAN_FRONTEND=noninteractive $wanted -y -qq >/dev/null" && as user "make $1"
}

first_update() {  # `make quickstart`, stopped in order when the first version that reinforcement learning made is there
  # shellcheck disable=SC2016
  as "$WHO" '
    make quickstart >quickstart.log 2>&1 & run=$!
    until [ -e runs/quickstart/checkpoints/v000002 ]; do
      kill -0 $run 2>/dev/null || { wait $run; status=$?; tail -30 quickstart.log; exit $((status + !status)); }
      sleep 1
    done
    .venv/bin/dart-train stop quickstart
    wait $run; status=$?
    tail -3 quickstart.log
    [ $status -eq 2 ] || exit $((status + !status))   # make says 2 of any command that did not end well: 130 here'
}

timed "the base system" base_system
say "$SUITE: a machine in $MACHINE"
[ -n "${KEEP:-}" ] || trap 'rm -rf --one-file-system "$MACHINE"' EXIT
if [ -z "${REUSE:-}" ]; then
  rm -rf --one-file-system "$MACHINE"
  cp -a "$BASE" "$MACHINE"
  chroot "$MACHINE" useradd --create-home --uid 1000 --shell /bin/bash user
  network
  mkdir -p "$MACHINE/root/dart"
  as root 'apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends make >/dev/null 2>&1'
  git clone -q . "$MACHINE$HOME_THERE/dart"
else
  network
  git -c safe.directory='*' -C "$MACHINE$HOME_THERE/dart" fetch -q "$PWD" HEAD
  git -c safe.directory='*' -C "$MACHINE$HOME_THERE/dart" reset -q --hard FETCH_HEAD
fi
[ "$WHO" = root ] || chown -R 1000:1000 "$MACHINE/home/user"

timed "make setup" set_up setup
if [ -n "$COMMAND" ]; then timed "$COMMAND" as "$WHO" "$COMMAND"; exit; fi
timed "make quickstart, to its first update" first_update
timed "set-up for make test-unit" set_up setup-unit
timed "make test-unit" as "$WHO" "make test-unit"
