"""Trackers of metrics: known, installed, and with credentials, so that none asks for a password after hours."""

import importlib.util
import netrc
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from dart_gym.core.suggestions import suggest
from dart_train.preflight.library_names import trackers

PACKAGES = {
    "tensorboard": ("tensorboard", "tensorboardX"),
    "wandb": ("wandb",),
    "trackio": ("trackio",),
    "comet_ml": ("comet_ml",),
    "mlflow": ("mlflow",),
    "neptune": ("neptune",),
    "clearml": ("clearml",),
    "swanlab": ("swanlab",),
    "dvclive": ("dvclive",),
    "codecarbon": ("codecarbon",),
    "azure_ml": ("azureml",),
    "dagshub": ("dagshub", "mlflow"),
    "flyte": ("flytekit",),
}
"""Modules of each tracker, of which one does."""


def tracker_problems(report_to: str | Sequence[str]) -> list[str]:
    """Return what is wrong with `trainer.report_to`."""
    names = [report_to] if isinstance(report_to, str) else list(report_to)
    known, found = trackers(), list[str]()
    for name in names:
        if name in ("none", "all") or not known:
            continue
        if name not in known:
            hint = suggest(
                name, dict.fromkeys([*sorted(known), "none"]), otherwise=f"there are {', '.join(sorted(known))}"
            )
            found.append(f"trainer.report_to: unknown tracker {name!r}; {hint}")
            continue
        modules = PACKAGES.get(name, ())
        if modules and not any(importlib.util.find_spec(module) for module in modules):
            found.append(f"trainer.report_to: {name} is not installed: pip install {modules[0]}, or leave it out")
        elif (has := CREDENTIALS.get(name)) is not None and not has[0]():
            found.append(f"trainer.report_to: {name} has no credentials here: {has[1]}, or leave it out")
    return found


def _file(*names: str) -> bool:
    return any(Path(name).expanduser().is_file() for name in names)


def _wandb() -> bool:
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_MODE", "").lower() in ("offline", "disabled", "dryrun"):
        return True
    if os.environ.get("WANDB_DISABLED", "").lower() in ("true", "1"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    for path in (os.environ.get("NETRC"), "~/.netrc", "~/_netrc"):
        try:
            if path and netrc.netrc(Path(path).expanduser()).authenticators(host):
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False


CREDENTIALS: dict[str, tuple[Callable[[], bool], str]] = {
    "wandb": (_wandb, "set WANDB_API_KEY, run `wandb login`, or set WANDB_MODE=offline"),
    "comet_ml": (
        lambda: (
            bool(os.environ.get("COMET_API_KEY") or os.environ.get("COMET_MODE") == "OFFLINE")
            or _file("~/.comet.config", ".comet.config")
        ),
        "set COMET_API_KEY",
    ),
    "neptune": (lambda: bool(os.environ.get("NEPTUNE_API_TOKEN")), "set NEPTUNE_API_TOKEN"),
    "clearml": (
        lambda: bool(os.environ.get("CLEARML_API_ACCESS_KEY")) or _file("~/clearml.conf"),
        "set CLEARML_API_ACCESS_KEY and CLEARML_API_SECRET_KEY, or run `clearml-init`",
    ),
    "swanlab": (
        lambda: bool(os.environ.get("SWANLAB_API_KEY")) or _file("~/.swanlab/.netrc"),
        "set SWANLAB_API_KEY, or run `swanlab login`",
    ),
}
"""Of trackers that have a server: whether credentials are here, and how to get them."""
