"""The trainer: leases of task groups in, published weights out.

Importing this package is cheap; the names below load torch and transformers when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dart_gym.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from dart_train.trainer.grpo_trainer import DartGRPOTrainer as DartGRPOTrainer
    from dart_train.trainer.settings.grpo_config import DartGRPOConfig as DartGRPOConfig

__all__ = ["DartGRPOConfig", "DartGRPOTrainer"]
__getattr__ = lazy_names(
    __name__,
    {"DartGRPOConfig": "dart_train.trainer.settings.grpo_config", "DartGRPOTrainer": "dart_train.trainer.grpo_trainer"},
)
