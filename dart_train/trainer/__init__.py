"""The trainer: leases of task groups in, published weights out.

Importing this package is cheap; the names below load torch and transformers when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dart_train.trainer.config import DartGRPOConfig as DartGRPOConfig
    from dart_train.trainer.trainer import DartGRPOTrainer as DartGRPOTrainer

_LAZY = {
    "DartGRPOConfig": "dart_train.trainer.config",
    "DartGRPOTrainer": "dart_train.trainer.trainer",
}
__all__ = ["DartGRPOConfig", "DartGRPOTrainer"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
