# Which build of torch belongs on this machine, and its installation with everything that it needs.
#   - with an NVIDIA GPU: what the package index has, a CUDA build; requirements/torch.txt locks it and CUDA's libraries
#   - without: a CPU build, of a local folder that pip is configured with (find-links) or of PyTorch's index for CPUs, and
#     where neither has one the CUDA build, which computes the same and is about fifteen times as large
# The user decides otherwise by
#   DART_TORCH_BUILD=cpu|cuda    as on a machine without or with a GPU (a login node of a cluster, an image)
#   DART_TORCH_INDEX=URL         an index with builds of torch, such as that for an older CUDA or for ROCm
#   DART_TORCH=torch==VERSION    another version
# An environment keeps the build that it has: remove it to choose anew. No package that a lock names gets another version.

CPU_INDEX=https://download.pytorch.org/whl/cpu
FULL_DOWNLOAD="3 GB" FULL_MIB=7500     # the wheels (2.7 GB); the wheels and, unpacked, 4.5 GB
CPU_MIB=1500
OLDEST_DRIVER=580                      # of CUDA 13, which requirements/torch.txt has
TORCH_VERSION=$(sed -n 's/^torch==\([^ ]*\).*/\1/p' requirements/torch.txt)

driver() {  # the version of the NVIDIA driver, nothing where no GPU can be used
  command -v nvidia-smi >/dev/null || return 0
  nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | sed -n '1s/^\([0-9.]*\)$/\1/p' || :
}

torch_build() {  # cpu or cuda
  case ${DART_TORCH_BUILD:-} in
    cpu | cuda) echo "$DART_TORCH_BUILD" ;;
    "") if [ -n "$(driver)" ]; then echo cuda; else echo cpu; fi ;;
    *) die "there is no build of torch named $DART_TORCH_BUILD" "DART_TORCH_BUILD is cpu or cuda" ;;
  esac
}

torch_here() {  # torch_here VENV : its version and build, from its metadata; nothing where there is none
  "$1/bin/python" - <<'PYTHON'
import importlib.metadata
try:
    torch = importlib.metadata.distribution("torch")
    cuda = any(line.startswith(("nvidia-", "cuda-")) for line in torch.requires or ())
    print(torch.version, "cuda" if cuda else "cpu")
except importlib.metadata.PackageNotFoundError:
    pass
PYTHON
}

# install_torch VENV LOCK: after the packages of LOCK, which holds what every build of torch needs.
install_torch() {
  local venv=$1 lock=$2 build here
  build=$(torch_build)
  here=$(torch_here "$venv")
  if [ -n "${DART_TORCH:-}${DART_TORCH_INDEX:-}" ]; then
    torch_of_index "$venv" "$lock" "${DART_TORCH_INDEX:-}"
    return
  fi
  case "$build $here" in
    "cpu $TORCH_VERSION cpu" | "cpu $TORCH_VERSION+"* | "cuda $TORCH_VERSION+"*" cuda") return ;;
    "cpu $TORCH_VERSION cuda" | "cuda $TORCH_VERSION cuda") ;;                 # looked over: once it came without CUDA's libraries
    cpu*) if cpu_torch "$venv" "$lock"; then return; fi ;;
    *" cpu") quietly "$venv/bin/python" -m pip uninstall -qy torch || failed "pip could not remove torch $here" "rm -rf $venv" ;;
  esac
  full_torch "$venv" "$lock" "$build"
}

cpu_torch() {  # cpu_torch VENV LOCK : false where no CPU build can be had
  local python=$1/bin/python
  if quietly "$python" -m pip install -q --no-compile --no-deps --no-index "torch==$TORCH_VERSION"; then
    case $(torch_here "$1") in *" cpu") say "Installed torch $TORCH_VERSION of a local folder"; return 0 ;; esac
  fi
  [[ "$(timeout 20 "$python" -m pip index versions torch --index-url "$CPU_INDEX" --timeout 5 --retries 0 2>/dev/null)" \
    == *" $TORCH_VERSION+cpu"* ]] || return 1
  torch_of_index "$1" "$2" "$CPU_INDEX"
}

torch_of_index() {  # torch_of_index VENV LOCK INDEX : with what it requires, at the locked versions
  local torch=${DART_TORCH:-torch==$TORCH_VERSION}
  say "Installing $torch${3:+ of $3}"
  need_space "$CPU_MIB" torch
  sed -E '/^ *--hash/d; s/ *\\$//' "$2" >"$1/constraints.txt"
  run_pip "$1" --only-binary :all: ${3:+--extra-index-url "$3"} -c "$1/constraints.txt" "$torch"
}

full_torch() {  # full_torch VENV LOCK BUILD : a CUDA build and CUDA's libraries
  local why=
  if [ "$3" = cpu ]; then why=": this machine has no GPU, but no CPU build can be had, since $CPU_INDEX cannot be reached or lacks it"
  else check_driver; fi
  if [ "$(torch_here "$1")" != "$TORCH_VERSION cuda" ]; then
    say "Installing torch $TORCH_VERSION with CUDA, a download of about $FULL_DOWNLOAD$why"
    need_space "$FULL_MIB" "torch and CUDA's libraries"
  fi
  awk 'NR == FNR { if (/^[a-z0-9]/) { split($0, pin, "=="); locked[pin[1]] } next }
       /^[^ ]/ { split($0, pin, "=="); skip = pin[1] in locked } !skip' "$2" requirements/torch.txt >"$1/torch.txt"
  install "$1" "$1/torch.txt"
}

check_driver() {
  local found
  found=$(driver)
  [ -n "$found" ] && [ "${found%%.*}" -lt "$OLDEST_DRIVER" ] || return 0
  die "the NVIDIA driver $found is too old for torch $TORCH_VERSION, whose CUDA needs $OLDEST_DRIVER or newer" \
    "update the driver, or install a build for an older CUDA (PyTorch's site lists them), or one that leaves the GPU alone:" \
    "DART_TORCH_INDEX=https://download.pytorch.org/whl/cu126 make setup" "DART_TORCH_BUILD=cpu make setup"
}

# check_torch VENV: import torch and multiply two matrices, on the GPU too where there is one.
check_torch() {
  local status=0
  quietly "$1/bin/python" - "$(torch_build)" <<'PYTHON' || status=$?
import sys

import torch

places = ["cpu"]
if torch.cuda.is_available():
    places.append("cuda")
elif sys.argv[1] == "cuda" and torch.version.hip is None:
    print(f"torch {torch.__version__} cannot use the GPU of this machine")
for place in places:
    matrix = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=place)
    product = (matrix @ matrix).tolist()
    if product != [[7.0, 10.0], [15.0, 22.0]]:
        sys.exit(f"torch {torch.__version__} multiplies wrongly on {place}: {product}")
PYTHON
  if [ "$status" -ne 0 ]; then
    failed "torch was installed in $1 but does not work (exit status $status)" \
      "its last words are above; rm -rf $1 and run again, with DART_TORCH_BUILD=cpu or another DART_TORCH_INDEX where that does not help"
  fi
  if [ -n "$OUTPUT" ]; then say "$OUTPUT"; fi
}
