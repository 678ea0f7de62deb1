"""A Ray cluster of this machine alone, for tests of what runs in actors."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dart_train.nodes.program_host import NODE_DIR_ENV, RunOnNodes
from dart_train.nodes.ray_cluster import NAMESPACE

STARTS = 4
"""A busy machine may take longer for a start than the 30 s that Ray gives it."""

_TOKEN = secrets.token_hex(32)
"""Ray reads it once in a process, so clusters that one has after another share it."""


@contextmanager
def local_ray(run: RunOnNodes, node_dir: object, *, cores: int) -> Iterator[RunOnNodes]:
    """Start one, to which a run belongs whose own directory is on no node of it, and end it.

    Args:
        run: what its programs are told.
        node_dir: where the node keeps what is the run's.
        cores: that programs may ask for.
    """
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(NODE_DIR_ENV, str(node_dir))
        patch.setenv("RAY_AUTH_TOKEN", _TOKEN)
        for left in reversed(range(STARTS)):
            try:
                ray.init("local", num_cpus=cores, namespace=NAMESPACE, include_dashboard=False, log_to_driver=False)
                break
            except Exception as error:
                ray.shutdown()
                if not left or "timed out during startup" not in str(error):
                    raise
        try:
            yield run
        finally:
            ray.shutdown()
