"""What all checks are given: the device, the model, and how large the measurements are. No torch is loaded here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class CheckSetting:
    """The settings of one `dart-train check-gpu`.

    Attributes:
        device: "cuda" or "cpu".
        devices: number of GPUs that may be used; on the CPU, the number of ranks that share the processor.
        model_dir: directory of the checkpoint whose parity and speed are measured.
        own_model: whether the user named the checkpoint; otherwise it is a tiny one with random weights.
        scratch: an empty directory for files of the checks, on the disk that runs would use.
        vllm: whether vLLM's environment is installed.
    """

    device: str
    devices: int
    model_dir: Path
    own_model: bool
    scratch: Path
    vllm: bool

    @property
    def on_gpu(self) -> bool:
        """Return whether GPUs are checked."""
        return self.device == "cuda"

    def as_values(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        return asdict(self) | {"model_dir": str(self.model_dir), "scratch": str(self.scratch)}

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> CheckSetting:
        """Return the setting that `as_values` turned into `values`."""
        paths = {"model_dir": Path(values["model_dir"]), "scratch": Path(values["scratch"])}
        return cls(**{**values, **paths})
