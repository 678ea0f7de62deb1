"""Limits of memory that earlier lives of a trainer have found.

With fsdp, a step that runs out of memory in the middle of a pass cannot be retried: the other ranks wait for this
rank's weights. The rank writes down a smaller limit and ends, and the trainer that is started next keeps to it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from dart_gym.utils.durable_files import write_file
from dart_train.core.train_errors import TrainingError
from dart_train.trainer.weights.ranks import Ranks

FILE = "memory_limits.json"


@dataclass(frozen=True, slots=True)
class RememberedLimits:
    """Limits of a step, in addition to those of the settings.

    Attributes:
        path: the file in the trainer's directory.
        micro_batch_tokens: most tokens of a micro-batch; None for those of the settings.
        longest: tokens of the longest step that is trained on; None for any. Longer ones are dropped as too_long.
    """

    path: Path
    micro_batch_tokens: int | None = None
    longest: int | None = None

    @classmethod
    def shared(cls, output_dir: Path, ranks: Ranks) -> RememberedLimits:
        """Read the limits on the main rank, for all. Called by all ranks.

        Raises:
            TrainingError: if the file is damaged.
        """
        path = output_dir / FILE
        found = cls._read(path) if ranks.is_main else (None, None)
        return cls(path, *ranks.share(found))

    @staticmethod
    def _read(path: Path) -> tuple[int | None, int | None]:
        if not path.exists():
            return None, None
        try:
            values = json.loads(path.read_text())
            return values["micro_batch_tokens"], values["longest"]
        except (ValueError, KeyError, TypeError) as error:
            raise TrainingError(
                f"{path} is damaged ({error!r}): remove it, and steps are as large as before"
            ) from error

    def lower(self, micro_batch_tokens: int, longest: int | None) -> None:
        """Write smaller limits down, for the next life."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"micro_batch_tokens": micro_batch_tokens, "longest": longest or self.longest})
        write_file(self.path, text)
