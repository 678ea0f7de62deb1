"""The trainer: leases of task groups in, published weights out.

Importing this package is cheap; the names below load torch and transformers when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dart_train.trainer.grpo_trainer import DartGRPOTrainer as DartGRPOTrainer
    from dart_train.trainer.settings.grpo_config import DartGRPOConfig as DartGRPOConfig

_LAZY = {
    "DartGRPOConfig": "dart_train.trainer.settings.grpo_config",
    "DartGRPOTrainer": "dart_train.trainer.grpo_trainer",
}
__all__ = ["DartGRPOConfig", "DartGRPOTrainer"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
