# What the scripts of this folder share. They say in two lines what went wrong and what to do about it.

say() { printf '\033[1m%s\033[0m\n' "$*" >&2; }
die() { printf '\033[31merror:\033[0m %s\n' "$1" >&2; shift; for line in "$@"; do printf '  %s\n' "$line" >&2; done; exit 1; }

LOG=$(mktemp)
trap 'rm -f "$LOG"' EXIT

# stamp VENV FILE... : the path that says that an environment was made from just these files.
stamp() { local venv=$1; shift; echo "$venv/.stamp-$(cat "$@" | sha256sum | cut -c1-16)"; }

# find_python VERSION... : the first of these Pythons that is here, on the PATH or pyenv's; nothing where none is.
find_python() {
  local version path
  for version in "$@"; do
    for path in "$(command -v "python$version")" "$HOME/.pyenv/versions/$version".*/bin/python3; do
      if [ -x "$path" ] && "$path" -c 'import venv, ensurepip' 2>/dev/null; then echo "$path"; return; fi
    done
  done
}

need_space() {  # need_space MIB WHAT
  local free
  free=$(df -Pk . | awk 'NR==2 {print int($4/1024)}')
  [ "$free" -ge "$1" ] || die "only ${free} MiB are free here; $2 need about $1 MiB" "free some space and run again"
}

run_pip() {
  local venv=$1; shift
  "$venv/bin/python" -m pip install --disable-pip-version-check -q --no-compile "$@" >"$LOG" 2>&1 ||
    { grep -v '^WARNING' "$LOG" | tail -5 >&2; die "pip could not install: $*" "its last words are above; run again when that is mended: it continues where it was"; }
}

# install VENV FILE... : the packages of locked requirements; by uv where there is one, .venv's at last: that takes seconds.
install() {
  local venv=$1 uv files=(); shift
  for file in "$@"; do files+=(-r "$file"); done
  uv=$(command -v uv || echo .venv/bin/uv)
  if [ -x "$uv" ] && "$uv" pip install -q --no-deps --python "$venv/bin/python" "${files[@]}" >"$LOG" 2>&1; then return; fi
  run_pip "$venv" --no-deps "${files[@]}"   # it may know an index that uv does not
}

# install_project VENV: this project, editable; setuptools is among the locked packages.
install_project() { run_pip "$1" --no-deps --no-build-isolation -e .; }

# install_torch VENV [VERSION]: first and alone, by pip: a looser range would pull a newer build with gigabytes of CUDA.
install_torch() {
  local venv=$1 torch=${DART_TORCH:-torch==2.13.0}
  "$venv/bin/python" -c 'import torch' >/dev/null 2>&1 && return
  say "Installing $torch"
  run_pip "$venv" --no-deps "$torch"
}

# make_venv VENV [PYTHON]: an empty environment.
make_venv() {
  "${2:-.venv/bin/python}" -m venv --clear "$1" >"$LOG" 2>&1 ||
    { tail -5 "$LOG" >&2; die "${2:-.venv/bin/python} could not make $1" "its last words are above; mend that and run again"; }
}
