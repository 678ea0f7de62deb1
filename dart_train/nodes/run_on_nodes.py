"""The description of a run for the nodes of a cluster, and the way in which its processes start engines there."""

import os

from dart_train.config.run_config import ConfigError, RunConfig
from dart_train.nodes.program_host import CLUSTER_ENV, RunOnNodes
from dart_train.nodes.ray_cluster import EnginesOnNodes, connect, here
from dart_train.nodes.run_keys import RunKeys
from dart_train.run.run_directory import RunDirectory

SHARED_ENV = "DART_GPUS_SHARED"
"""Variable that tells a process of a run on Ray whether engines share the trainer's GPUs, as the launcher decided."""


def described(config: RunConfig, run: RunDirectory, cluster: str, *, shared: bool) -> RunOnNodes:
    """Return the description of a run. Credentials of database and object store come from this environment.

    Args:
        config: the run.
        run: its directory.
        cluster: address of the cluster.
        shared: whether engines and trainer share their GPUs.

    Raises:
        ConfigError: if engines on other nodes cannot get their weights as the run says.
    """
    if config.rollout.sync.transfer == "adapter":
        raise ConfigError(
            "rollout.sync.transfer adapter is for engines on the trainer's machine: the weights under an adapter do "
            "not travel with it. Set it to files, or leave out --ray"
        )
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
    """Return what starts engines on the cluster that this process was started on; None outside of a cluster."""
    address = os.environ.get(CLUSTER_ENV)
    if address is None:
        return None
    shared = os.environ[SHARED_ENV] == "1"
    return EnginesOnNodes(described(config, run, connect(address), shared=shared), shared=shared)
