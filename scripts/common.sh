# What the scripts of this folder share. An error says what happened and what to do about it.

say() { printf '\033[1m%s\033[0m\n' "$*" >&2; }
die() { printf '\033[31merror:\033[0m %s\n' "$1" >&2; shift; for line in "$@"; do printf '  %s\n' "$line" >&2; done; exit 1; }

# What is installed may be read by everybody: desktops that root starts have users of their own.
umask 022

# Settings of the user that install packages elsewhere, or import them from elsewhere, would break every environment.
unset PYTHONHOME PYTHONPATH PIP_TARGET PIP_PREFIX PIP_ROOT
export PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1

. scripts/indexes.sh
. scripts/torch.sh

# stamp VENV FILE... : the path that says that an environment was made from just these files.
stamp() { local venv=$1; shift; echo "$venv/.stamp-$(cat "$@" | sha256sum | cut -c1-16)"; }

# find_python VERSION... : the first of these Pythons that is here, on the PATH or pyenv's; nothing where none is.
find_python() {
  local version path
  for version in "$@"; do
    for path in "$(command -v "python$version")" "${HOME:-}/.pyenv/versions/$version".*/bin/python3; do
      if [ -x "$path" ] && "$path" -c 'import venv, ensurepip' 2>/dev/null; then echo "$path"; return; fi
    done
  done
}

need_space() {  # need_space MIB WHAT
  local free
  free=$(df -Pk . | awk 'NR==2 {print int($4/1024)}')
  [ "$free" -ge "$1" ] || die "only ${free} MiB are free here; $2 need about $1 MiB" "free some space and run again"
}

# quietly COMMAND... : run it and keep what it prints in OUTPUT, in memory: a full disk may be what it reports.
quietly() { OUTPUT=$("$@" 2>&1); }

# failed WHAT NEXT... : end with the last words of the command that `quietly` ran, and say the cause where they name one
# that users meet: a full disk, a package without a wheel for this Python.
failed() {
  local what=$1; shift
  printf '%s\n' "$OUTPUT" | grep -v -e '^WARNING' -e '^\[notice\]' -e '^$' | tail -5 >&2 || :
  if [[ ${OUTPUT,,} =~ (no space left|enough free space|errno 28|os error 28|disk quota exceeded) ]]; then
    die "$what: the disk is full" "free some space and run again: it continues where it stopped" \
      "packages, temporary files and caches lie in: $(free_space . "${TMPDIR:-/tmp}" "${XDG_CACHE_HOME:-${HOME:-/}}")"
  fi
  if [[ $OUTPUT =~ "No matching distribution found for "([^ $'\n']+) ]]; then
    die "$what: the package index has no ${BASH_REMATCH[1]} for this Python ($PYTHON_HERE)" \
      "take another Python (3.11 to 3.13 are tested): rm -rf .venv; make setup PYTHON=python3.12" "or another index: $(index_in_use)"
  fi
  die "$what" "$@"
}

free_space() { df -Ph "$@" 2>/dev/null | awk 'NR>1 && !seen[$6]++ {printf "%s%s (%s free)", sep, $6, $4; sep=", "}'; }

# packages VENV OPTION... : install, by uv where there is one (.venv's at last) and by pip where uv fails.
packages() {
  local venv=$1 uv; shift
  share_indexes "$venv"
  uv=$(command -v uv || echo .venv/bin/uv)
  if [ -x "$uv" ] && quietly "$uv" pip install -q --python "$venv/bin/python" "$@"; then return; fi
  run_pip "$venv" "$@"   # it may know an index that uv does not
}

run_pip() {  # with its temporary files beside the packages: those of torch fill a /tmp that lies in memory
  local venv=$1 temporary=$PWD/$1/tmp; shift
  share_indexes "$venv"
  rm -rf "$temporary"
  mkdir -p "$temporary"
  if quietly env TMPDIR="$temporary" "$venv/bin/python" -m pip install -q --no-compile "$@"; then rm -rf "$temporary"; return; fi
  rm -rf "$temporary"
  PYTHON_HERE=$("$venv/bin/python" -c 'import platform as p; print(p.python_version(), p.system(), p.machine())')
  failed "pip could not install: $*" "its last words are above; run again when that is mended: it continues where it was"
}

# install VENV FILE... : the packages of locked requirements. Each of them has wheels: without --only-binary, a Python for
# which one has none would compile for minutes, and end in a compiler's errors. SOURCES names those that have none at all.
install() {
  local venv=$1 files=(); shift
  for file in "$@"; do files+=(-r "$file"); done
  packages "$venv" --no-deps --only-binary :all: ${SOURCES:+--no-binary "$SOURCES"} "${files[@]}"
}

# install_project VENV: this project, editable; setuptools is among the locked packages.
install_project() { run_pip "$1" --no-deps --no-build-isolation -e .; }

# make_venv VENV [PYTHON]: an empty environment.
make_venv() {
  [ ! -L "$1" ] || rm "$1"   # venv would empty what a link leads to, which may be another checkout's, and then refuse the link
  quietly "${2:-.venv/bin/python}" -m venv --clear "$1" ||
    failed "${2:-.venv/bin/python} could not make $1" "its last words are above; mend that and run again"
}
