"""The GPUs of this machine, as `nvidia-smi` lists them and `CUDA_VISIBLE_DEVICES` restricts them; loads no torch."""

import os
import subprocess
from dataclasses import dataclass

from dart_train.core.train_errors import DartTrainError

_QUERY = ("nvidia-smi", "--query-gpu=index,uuid,name,memory.total,memory.used", "--format=csv,noheader,nounits")
QUERY_LIMIT_S = 30.0
OCCUPIED_MB = 2048
"""With so much in use a GPU counts as somebody else's; a driver, or a desktop, takes some hundred MiB."""


class GPUError(DartTrainError):
    """The GPUs of this machine cannot be asked, or `CUDA_VISIBLE_DEVICES` names one that is not here."""

    hopeless = True


@dataclass(frozen=True, slots=True)
class GPU:
    """One GPU.

    Attributes:
        index: by which `CUDA_VISIBLE_DEVICES` names it, in the order of the bus.
        name: of its kind, such as "NVIDIA H100 80GB HBM3".
        memory_mb: its memory in MiB.
        used_mb: MiB of it that are in use now.
    """

    index: int
    name: str
    memory_mb: int
    used_mb: int = 0

    @property
    def occupied(self) -> bool:
        """Return whether somebody computes on it already."""
        return self.used_mb >= OCCUPIED_MB


def gpus_here() -> list[GPU]:
    """The GPUs that a run may use, by index; none where there is no driver.

    Raises:
        GPUError: the driver does not answer, or `CUDA_VISIBLE_DEVICES` names what is not here.
    """
    try:
        done = subprocess.run(_QUERY, capture_output=True, text=True, timeout=QUERY_LIMIT_S, check=True)
    except FileNotFoundError:
        return []
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stdout", None) or str(error)).strip().splitlines()
        if "No devices were found" in " ".join(said):
            return []
        raise GPUError(
            f"nvidia-smi is here and does not list the GPUs ({said[-1] if said else error}): mend the driver, or set "
            "PATH without it to run on the CPU"
        ) from None
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.count(",") >= 4]
    found = {}
    for index, uuid, *name, total, used in rows:
        if total.isdigit():  # a device without memory of its own says "[N/A]"
            found[uuid] = GPU(int(index), ",".join(name), int(total), int(used) if used.isdigit() else 0)
    return _visible(found, os.environ.get("CUDA_VISIBLE_DEVICES"))


def _visible(found: dict[str, GPU], visible: str | None) -> list[GPU]:
    """Those that an environment variable leaves, which names them by index or by the beginning of a UUID."""
    if visible is None:
        return list(found.values())
    chosen = []
    for name in filter(None, map(str.strip, visible.split(","))):
        if name == "-1":  # CUDA ends the list there
            break
        named = [gpu for uuid, gpu in found.items() if name == str(gpu.index) or uuid.startswith(name)]
        if not named:
            here = ", ".join(str(gpu.index) for gpu in found.values()) or "none"
            raise GPUError(f"CUDA_VISIBLE_DEVICES names {name!r}; the GPUs here are {here}: correct it, or unset it")
        chosen.append(named[0])
    return chosen
