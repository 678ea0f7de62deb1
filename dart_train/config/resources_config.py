"""The section `resources`: which part of a machine, or of a cluster, goes to whom."""

from pydantic import Field

from dart_gym.core.section import Section


class ResourcesConfig(Section):
    """GPUs of engines and trainer, cores of desktops. What is left out is found, and said when a run starts."""

    engine_gpus: int | None = Field(
        None,
        ge=0,
        description="GPUs of each engine replica that is started here, with tensor parallelism over them; 0 computes "
        "on the CPU. null is 1 for engines that compute on GPUs, where there are some.",
    )
    trainer_ranks: int | None = Field(
        None,
        ge=1,
        description="Processes that train together, each on a GPU of its own (or on the CPU with trainer.use_cpu); "
        "trainer.fsdp shards the model among them. null is the GPUs that engines leave, half of them where those are "
        "not counted either.",
    )
    trainer_nodes: int = Field(
        1,
        ge=1,
        description="Nodes of a Ray cluster that the trainer's ranks are spread over, equally many on each; more than "
        "1 needs `--ray`.",
    )
    share_gpus: bool | None = Field(
        None,
        description="Whether engines and trainer have the same GPUs, each a part of the memory. null: only where there "
        "is one GPU.",
    )
    engine_memory: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Share of its GPUs' memory that a replica takes; null is 0.9, or 0.4 of GPUs that the trainer has "
        "as well.",
    )
    desktop_cores: int | None = Field(
        None,
        ge=1,
        description="Processor cores that desktops may use, the last ones of those that this process may; null: all.",
    )
