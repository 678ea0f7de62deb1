"""`SupervisedConfig`: settings of supervised training, read without torch. A run's section `warmup` is one."""

from typing import Self

from pydantic import Field, model_validator

from dart_gym.core.section import Section, constant


class SupervisedConfig(Section):
    """Supervised training. It ends at the first limit that is reached; one of the two is needed."""

    max_steps: int = Field(0, ge=0, description="Optimizer steps; 0 for no such limit.")
    max_seconds: float | None = Field(
        None, gt=0, description="Seconds of training, start-up left out; null for no such limit."
    )
    batch_size: int = Field(16, ge=1, description="Demonstrated steps in a batch.")
    learning_rate: float = Field(
        2e-3,
        gt=0,
        description="Learning rate of AdamW at its highest; it falls to a tenth along a cosine over the steps or "
        "seconds, whichever end first.",
    )
    warmup_steps: int = Field(50, ge=0, description="Optimizer steps in which the learning rate rises.")
    seed: int = Field(0, description="Seed of the order of samples.")
    threads: int = Field(0, ge=0, description="Threads of torch on the CPU; 0 leaves torch's default.")

    @property
    def limited(self) -> bool:
        """Return whether it ends, by steps or by seconds."""
        return bool(self.max_steps or self.max_seconds)

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if not self.limited:
            raise ValueError("supervised training needs a limit: set max_steps, max_seconds or both")
        return self


class WarmupConfig(SupervisedConfig):
    """Supervised training on the demonstrations, before the reinforcement learning; it is left out without a limit."""

    max_seconds: float | None = constant(None, "Seconds of training; None for no such limit.", gt=0)
    threads: int = Field(2, ge=0, description="Threads of torch on the CPU; 0 leaves torch's default.")
    pool_sources: tuple[str, ...] = Field(
        (), description="Recorded successes of these sources are trained on too, such as human, or another policy's."
    )

    @model_validator(mode="after")
    def _ends(self) -> Self:
        return self
