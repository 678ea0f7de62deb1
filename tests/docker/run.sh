#!/usr/bin/env bash
# Docker for real, from nothing: a daemon of its own, a base image, the image of docker/osworld, and a desktop in a
# container that plays an episode. Nothing is left behind but what apt installed, and the base image for the next time.
#
#   tests/docker/run.sh [COMMAND...]       by default: the tests of this directory, with the daemon and the image at hand
#
# It needs root, Debian, and a kernel with overlayfs. Settings, all optional:
#   IMAGES=train       build and try the trainer's image instead, which takes ten minutes; TORCH and TORCH_INDEX as
#                      docker/train/Dockerfile has them
#   IMAGES=openenv     build and try the image of OpenEnv's server, upon that of docker/osworld
#   APPS=all           build the image with every application (the default, base, is some minutes and gigabytes smaller)
#   DOCKER_TEST_DIR    where daemon, images and logs go (a new directory below /tmp); it is removed at the end, unless
#                      KEEP=1, which makes the next run with the same directory a matter of seconds
#   APT_CONF, PIP_CONF, CA_FILE   files handed to the build as secrets, for networks with mirrors or an own authority;
#                      by default what this machine itself uses
set -euo pipefail
cd "$(dirname "$0")/../.."
ROOT=$PWD
DIR=${DOCKER_TEST_DIR:-$(mktemp -d /tmp/dart-docker.XXXXXX)}
APPS=${APPS:-base}
BASE=${XDG_CACHE_HOME:-$HOME/.cache}/dart-gym/debian-bookworm.tar   # kept for a month: making it takes a minute
IMAGE=dart-gym:test-$APPS
export DOCKER_HOST=unix://$DIR/docker.sock
unset DOCKER_CONTEXT

say() { printf '%s %s\n' "$(date +%T)" "$*" >&2; }
die() { printf 'error: %s\n  next step: %s\n' "$1" "$2" >&2; exit 1; }

need() {  # need PROGRAM PACKAGE
  command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ] && return 0
  say "installing $2"
  DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$2" >"$DIR/apt.log" 2>&1 ||
    { apt-get update -q >>"$DIR/apt.log" 2>&1 &&
      DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$2" >>"$DIR/apt.log" 2>&1; } ||
    { tail -5 "$DIR/apt.log" >&2; die "apt could not install $2" "mend what it says above"; }
}

# Each daemon has its own root, sockets and pid files, so that one of the machine's own is neither used nor disturbed.
start_daemon() {
  mkdir -p "$DIR/data" "$DIR/exec"
  dockerd --data-root "$DIR/data" --exec-root "$DIR/exec" --pidfile "$DIR/dockerd.pid" --host "$DOCKER_HOST" \
    --iptables=false --ip6tables=false --bridge=none ${STORAGE_DRIVER:+--storage-driver "$STORAGE_DRIVER"} \
    >"$DIR/dockerd.log" 2>&1 &
  DAEMON=$!
  for _ in $(seq 300); do
    "$DOCKER" version >/dev/null 2>&1 && return 0
    kill -0 "$DAEMON" 2>/dev/null || break
    sleep 0.1
  done
  tail -20 "$DIR/dockerd.log" >&2
  die "dockerd did not start" "its log is above; is this root, and a machine that may mount?"
}

stop_daemon() {
  local status=$?
  set +e
  if [ -n "${DAEMON:-}" ] && kill -0 "$DAEMON" 2>/dev/null; then
    local left
    left=$("$DOCKER" ps -aq)
    [ -z "$left" ] || { say "containers were left behind:"; "$DOCKER" ps -a >&2; "$DOCKER" rm -f $left >/dev/null; status=1; }
    kill "$DAEMON"
    wait "$DAEMON"
  fi
  # What a daemon that was killed leaves mounted.
  awk -v dir="$DIR/" 'index($2, dir) == 1 {print $2}' /proc/mounts | sort -r | while read -r place; do umount -l "$place"; done
  if [ "${KEEP:-}" != 1 ]; then rm -rf "$DIR"; fi
  exit "$status"
}

base_image() {
  "$DOCKER" image inspect debian:bookworm-slim >/dev/null 2>&1 && return 0
  if [ -z "$(find "$BASE" -mtime -30 2>/dev/null)" ]; then
    say "making a base image of Debian 12"
    debootstrap --variant=minbase bookworm "$DIR/root" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"} \
      >"$DIR/debootstrap.log" 2>&1 || { tail -5 "$DIR/debootstrap.log" >&2; die "debootstrap failed" "see above"; }
    rm -rf "$DIR/root/var/cache/apt/archives" "$DIR/root/var/lib/apt/lists"
    mkdir -p "$(dirname "$BASE")"
    tar -C "$DIR/root" --numeric-owner -cf "$BASE.$$" . && mv "$BASE.$$" "$BASE"
    rm -rf "$DIR/root"
  fi
  "$DOCKER" import "$BASE" debian:bookworm-slim >/dev/null
}

# The build sees the network as this machine does: its certificates, its pip.conf, and those settings of apt that are
# about downloads. They are secrets of the build: no layer has them.
secrets() {
  local ca=${CA_FILE:-/etc/ssl/certs/ca-certificates.crt}
  apt-config dump 2>/dev/null | grep -E '^Acquire::(Check-|http|https|Retries)' >"$DIR/apt.conf" || :
  cp "${APT_CONF:-$DIR/apt.conf}" "$DIR/apt.secret"
  { echo '[global]'; [ ! -s "$ca" ] || echo 'cert = /run/secrets/ca'; echo 'timeout = 180'; } >"$DIR/pip.conf"
  cp "${PIP_CONF:-$DIR/pip.conf}" "$DIR/pip.secret"
  SECRETS=(--secret "id=apt,src=$DIR/apt.secret" --secret "id=pip,src=$DIR/pip.secret")
  [ ! -s "$ca" ] || SECRETS+=(--secret "id=ca,src=$ca")
}

build() {  # build IMAGE DOCKERFILE ARGUMENT=VALUE... : of the folder CONTEXT, or the project's
  local started=$SECONDS image=$1 file=$2 arguments=(); shift 2
  for argument in "$@"; do arguments+=(--build-arg "$argument"); done
  say "building $image"
  DOCKER_BUILDKIT=1 "$DOCKER" build --network=host --progress=plain "${SECRETS[@]}" "${arguments[@]}" \
    -f "$file" -t "$image" "${CONTEXT:-.}" >"$DIR/build.log" 2>&1 ||
    { tail -40 "$DIR/build.log" >&2; die "$image could not be built" "the end of its log is above"; }
  say "built in $((SECONDS - started)) s, $("$DOCKER" image inspect -f '{{.Size}}' "$image" | numfmt --to=iec) large"
}

[ "$(id -u)" = 0 ] || die "a daemon of its own needs root" "run it as root, in a machine or a container for tests"
mkdir -p "$DIR"
need dockerd docker.io
need debootstrap debootstrap
DOCKER=$(command -v docker)
[ ! -x /usr/bin/docker ] || DOCKER=/usr/bin/docker   # Debian's builds with BuildKit without a plugin
trap stop_daemon EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
say "starting dockerd in $DIR"
start_daemon
say "storage driver: $("$DOCKER" info -f '{{.Driver}}')"
base_image
secrets
TESTS=(-m "docker and slow")
case ${IMAGES:-osworld} in
train)
  # For the CPU: whatever torch pip gives for TORCH (or of TORCH_INDEX), on the same base.
  build dart-train:test docker/train/Dockerfile "TORCH=${TORCH:-torch==2.13.0}" "TORCH_INDEX=${TORCH_INDEX:-}"
  TESTS+=(tests/docker/test_train_image.py) ;;
openenv)
  build "$IMAGE" docker/osworld/Dockerfile "APPS=$APPS"
  CONTEXT=integrations/openenv build dart-openenv:test integrations/openenv/server/Dockerfile "BASE_IMAGE=$IMAGE"
  TESTS+=(tests/docker/test_openenv_image.py) ;;
*)
  build "$IMAGE" docker/osworld/Dockerfile "APPS=$APPS"
  TESTS=(-m "docker and not slow" tests/docker) ;;
esac
export DART_DOCKER_IMAGE=$IMAGE DART_TRAIN_IMAGE=dart-train:test DART_OPENENV_IMAGE=dart-openenv:test
if [ $# -gt 0 ]; then "$@"; else
  REPORTS=build/docker "${PYTHON:-$ROOT/.venv/bin/python}" scripts/run_tests.py -q "${TESTS[@]}"
fi
