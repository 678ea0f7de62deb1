"""Peak speeds of accelerators, for model FLOP/s utilisation (MFU). No torch is loaded here.

MFU is the share of a device's peak that the operations of forward and backward pass reach (PaLM, arXiv 2204.02311,
appendix B). Operations that activation checkpointing computes again do not count.
"""

from __future__ import annotations

PEAK_FLOPS: dict[str, float] = {
    "GB200": 2.5e15,
    "B200": 2.25e15,
    "GH200": 989e12,
    "H200": 989e12,
    "H100 NVL": 835.5e12,
    "H100 PCIe": 756.5e12,
    "H100": 989e12,
    "H800": 989e12,
    "A100": 312e12,
    "A800": 312e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "A40": 149.7e12,
    "A10G": 70e12,
    "A10": 125e12,
    "RTX 6000 Ada": 364.2e12,
    "RTX 5090": 209.5e12,
    "RTX 4090": 165.2e12,
    "RTX 3090": 71e12,
    "V100": 125e12,
}
"""Operations per second with bfloat16 (V100: float16) inputs and float32 sums, dense, by a part of the device's name.

Sources: NVIDIA's data sheets of each device; where a sheet states the figure with sparsity, half of it. A10G: AWS's
figure for its instances. GeForce: the tables of the architecture white papers (with float32 accumulation). A longer
name precedes its beginning: the first match counts.
"""


def peak_flops(device_name: str) -> float | None:
    """Return a device's peak operations per second, or None for a device that the table does not hold."""
    return next((flops for name, flops in PEAK_FLOPS.items() if name in device_name), None)


def utilisation(flops: float, seconds: float, device_name: str, devices: int = 1) -> float | None:
    """Return the MFU of `flops` operations in `seconds` on `devices` equal devices, None where the peak is unknown."""
    peak = peak_flops(device_name)
    return None if peak is None or seconds <= 0 else flops / (seconds * peak * devices)
