"""What a run tells the nodes of a cluster, and how its processes come to start engines there."""

import os

from dart_train.config.run_config import RunConfig
from dart_train.nodes.program_host import CLUSTER_ENV, RunOnNodes
from dart_train.nodes.ray_cluster import EnginesOnNodes, connect, here
from dart_train.nodes.run_keys import RunKeys
from dart_train.run.run_directory import RunDirectory

SHARED_ENV = "DART_GPUS_SHARED"
"""Tells a process of a run on Ray whether its engines have the trainer's GPUs: the launcher decided it."""


def described(config: RunConfig, run: RunDirectory, cluster: str, *, shared: bool) -> RunOnNodes:
    """Return what nodes are told of a run. What gives access to database and object store comes from this environment.

    Args:
        config: the run.
        run: its directory.
        cluster: address of the cluster.
        shared: whether engines and trainer have the same GPUs.
    """
    passed = [name for name in os.environ if name.startswith(("AWS_", "FSSPEC_"))]
    names = [*passed, *([config.data.url_env] if config.data.url_env else [])]
    return RunOnNodes(
        name=config.name,
        root=str(run.root.resolve()),
        home=here(),
        config=run.config.read_text(encoding="utf-8"),
        keys=RunKeys.of_run(run.root / "keys"),
        directory=os.getcwd(),
        cluster=cluster,
        environment={name: os.environ[name] for name in names if name in os.environ} | {SHARED_ENV: str(int(shared))},
    )


def engines_on_nodes(config: RunConfig, run: RunDirectory) -> EnginesOnNodes | None:
    """Where a process of a run starts its engines: on nodes of the cluster that it was started on; None elsewhere."""
    address = os.environ.get(CLUSTER_ENV)
    if address is None:
        return None
    shared = os.environ[SHARED_ENV] == "1"
    return EnginesOnNodes(described(config, run, connect(address), shared=shared), shared=shared)
