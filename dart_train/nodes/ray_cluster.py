"""Access to a Ray cluster: connecting to it, and starting actors that run the programs of a run."""

import logging
import os
import secrets
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dart_agent.engines.base.engine import EngineError
from dart_agent.engines.base.engine_kind import EngineKind, Launch
from dart_gym.utils.waits import waiting_for
from dart_train.core.train_errors import DartTrainError
from dart_train.nodes.program_host import ProgramHost, RunOnNodes
from dart_train.nodes.remote_program import RemoteProgram
from dart_train.run.run_status import RunWindow

log = logging.getLogger(__name__)
NAMESPACE = "dart-train"
CONNECT_S = 15.0
ANSWER_S = 15.0
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
SETTINGS = 4
"""The first frame that a server of gRPC sends, by its fourth byte."""


class ClusterUnreachable(DartTrainError):
    """Ray is not installed, there is no cluster, or it cannot be used from here; the message says which."""

    hopeless = True


def connect(address: str, timeout_s: float = CONNECT_S) -> str:
    """Connect this process to a Ray cluster that this machine is a node of; return the address of the cluster.

    Args:
        address: "auto", or host:port of the head node.
        timeout_s: time limit for its first answer.

    Raises:
        ClusterUnreachable: if the connection fails.
    """
    try:
        with waiting_for("Ray to load"):
            import ray
    except ImportError as error:
        raise ClusterUnreachable(f"Ray is not installed ({error}): pip install 'dart-gui[ray]'") from error
    if "://" in address:
        raise ClusterUnreachable(f"--ray {address}: give auto, or HOST:PORT of the head node, on a node of the cluster")
    if address != "auto":
        _answers(address, timeout_s)
    try:
        # signals are handled by the launcher, and the output of actors has logs of its own
        with waiting_for(f"the Ray cluster at {address}"):
            ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        text = " ".join(str(error).split())
        if "ersion mismatch" in text:
            raise ClusterUnreachable(f"another Ray or Python runs the cluster: {text}") from error
        raise ClusterUnreachable(
            f"no Ray cluster at {address!r} that this machine is a node of ({text[:200]}): `ray start --head` starts "
            "one here, `ray start --address=HOST:6379` joins one"
        ) from error
    return str(ray.get_runtime_context().gcs_address)


def _answers(address: str, timeout_s: float) -> None:
    """Check that Ray's head node answers. Ray itself waits for minutes for a server that accepts and stays silent."""
    host, _, port = address.rpartition(":")
    try:
        with (
            waiting_for(f"the Ray cluster at {address}", timeout_s),
            socket.create_connection((host, int(port)), timeout_s) as connection,
        ):
            if os.environ.get("RAY_USE_TLS") != "1":
                connection.sendall(PREFACE)
                _see_settings(connection.recv(9))
    except TimeoutError as error:
        raise ClusterUnreachable(
            f"{address!r} did not answer within {timeout_s:g} s: is `ray start --head` running there?"
        ) from error
    except (OSError, ValueError) as error:
        raise ClusterUnreachable(
            f"nobody answers at {address!r} ({error}): is `ray start --head` running there, and its port (6379) open?"
        ) from error


def _see_settings(frame: bytes) -> None:
    if frame[3:4] != bytes((SETTINGS,)):
        raise ValueError("it answers, and is no Ray cluster" if frame else "it closed the connection")


def gpus() -> int:
    """Return the number of GPUs of the cluster."""
    import ray

    return int(ray.cluster_resources().get("GPU", 0))


def here() -> str:
    """Return Ray's id of this node."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


def on_node(node: str) -> dict[str, Any]:
    """Return the options that bind an actor or a task to one node without taking any of its resources."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}


def new_host(run: RunOnNodes, name: str, asks: dict[str, Any]) -> Any:
    """Create the actor of one program. Part of its name is random: the name of a lost actor is not free at once."""
    import ray

    label = f"{run.name}/{name}-{secrets.token_hex(2)}"
    options = {"name": label, "namespace": NAMESPACE, "max_restarts": 0, **asks}
    return ray.remote(ProgramHost).options(**options).remote(run, name)


def open_window(run: str, root: str) -> Any:
    """Create the actor on this node that shows a run's directory to other nodes; it replaces one of an earlier life."""
    import ray

    name = f"{run}/window"
    for before in ray.util.list_named_actors(all_namespaces=False):
        if before == name:
            ray.kill(ray.get_actor(name))
    options = {"name": name, "namespace": NAMESPACE, "get_if_exists": False, **on_node(here())}
    return ray.remote(RunWindow).options(**options).remote(root)


def ask_window(address: str, run: str, what: str, arguments: dict[str, Any], timeout_s: float = ANSWER_S) -> str:
    """Ask a run on a cluster, from any node of the cluster; see `RunWindow.ask`.

    Raises:
        ClusterUnreachable: if no run of this name is running there.
        RunDirectoryError: if the run itself refuses the question.
    """
    connect(address, timeout_s)
    import ray

    try:
        with waiting_for(f"the run {run} on the Ray cluster", timeout_s):
            return str(ray.get(ray.get_actor(f"{run}/window").ask.remote(what, arguments), timeout=timeout_s))
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.GetTimeoutError as error:
        raise ClusterUnreachable(f"the run {run!r} did not answer within {timeout_s:g} s: ask again") from error
    except (ValueError, ray.exceptions.RayError) as error:
        known = [name.removesuffix("/window") for name in ray.util.list_named_actors() if name.endswith("/window")]
        raise ClusterUnreachable(
            f"no run {run!r} is running on this cluster" + (f"; running: {', '.join(known)}" if known else "")
        ) from error


def told(asks: dict[str, Any]) -> str:
    """Return the resources that an actor needs, for people; "" if a node always has them."""
    wanted = {"CPU": asks.get("num_cpus", 0), "GPU": asks.get("num_gpus", 0), **asks.get("resources", {})}
    listed = ", ".join(f"{name}: {count:g}" for name, count in wanted.items() if count)
    return f"{{{listed}}} free" if listed else ""


def start(
    run: RunOnNodes, name: str, argv: Sequence[str], environment: dict[str, str], asks: dict[str, Any], log: Path
) -> RemoteProgram:
    """Start a program on the node that Ray chooses."""
    actor = new_host(run, name, asks)
    begun = actor.start.remote(list(argv), environment, sys.executable)
    return RemoteProgram(actor, begun, name, told(asks), log=log, metrics=Path(run.root) / "metrics")


def asks_of(kind: EngineKind, launch: Launch, *, shared: bool) -> dict[str, Any]:
    """Return the resources that an engine needs: GPUs, its part of a `shared` GPU, or a core for each thread. Pure."""
    if not launch.gpus:
        return {"num_cpus": getattr(kind, "threads", 1)}
    return {"num_cpus": 1, "num_gpus": launch.gpu_memory if shared else len(launch.gpus)}


class EnginesOnNodes:
    """Starts the engines of a rollout service on nodes of the cluster; see `replica.EngineNodes`."""

    def __init__(self, run: RunOnNodes, *, shared: bool = False) -> None:
        """Remember the run. Its engines have GPUs of their own unless they are `shared` with the trainer."""
        self._run, self._shared = run, shared

    async def start(self, kind: EngineKind, launch: Launch, url: str, log: Path | None) -> tuple[RemoteProgram, str]:
        """See `replica.EngineNodes`."""
        if not url:
            raise EngineError("these weights are on this node alone: publish them for engines on other nodes")
        name, asks = f"engine-{launch.index}", asks_of(kind, launch, shared=self._shared)
        actor = new_host(self._run, name, asks)
        begun = actor.start_server.remote(kind, replace(launch, path="", directory=Path()), url)
        program = RemoteProgram(actor, begun, name, told(asks), log=log)
        try:
            return program, await program.begun()
        except BaseException:
            program.kill_all()
            raise
