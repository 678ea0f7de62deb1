"""Found by every Python process of a faked machine: torch sees the GPUs that `nvidia-smi` lists there.

Only the launcher is told so: it checks the machine and computes nothing. The other processes compute, on the CPU; of
the share of a GPU's memory that a trainer takes, they note the number in `DART_FAKED_SHARES`.
"""

import importlib.abc
import importlib.util
import os
import sys
from types import SimpleNamespace


def fake(torch):
    """Have the imported torch tell of the faked machine."""
    if sys.argv[1:2] == ["run"]:
        count = int(os.environ["DART_FAKED_GPUS"])
        properties = SimpleNamespace(name="NVIDIA H100 80GB HBM3", total_memory=81559 << 20, major=9, minor=0)
        torch.cuda.is_available = lambda: True
        torch.cuda.device_count = lambda: count
        torch.cuda.get_device_properties = lambda device=0: properties
        torch.cuda.is_bf16_supported = lambda *given, **options: True
    else:

        def note_share(fraction, device=None):
            with open(os.environ["DART_FAKED_SHARES"], "a", encoding="utf-8") as file:
                file.write(f"{os.environ['CUDA_VISIBLE_DEVICES']} {fraction:g}\n")

        torch.cuda.set_per_process_memory_fraction = note_share


class _Finder(importlib.abc.MetaPathFinder):
    looking = False

    def find_spec(self, name, path=None, target=None):
        if name != "torch" or self.looking:
            return None
        self.looking = True
        try:
            spec = importlib.util.find_spec("torch")
        finally:
            self.looking = False
        load = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (load(module), fake(module))
        return spec


if "DART_FAKED_GPUS" in os.environ:
    sys.meta_path.insert(0, _Finder())
