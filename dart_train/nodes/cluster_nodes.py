"""The launcher's part on a Ray cluster: places for processes, and a desktop server on every node that offers desktops.

Processes that read and write the run directory stay on the launcher's node. The trainer's ranks have a placement group
of their own, reserved before anything else takes their place. Engines are started by the processes that use them.

Ray Train is not used: it would bring a second supervisor, its own files and a directory that all nodes share. The ranks
run as on one machine, by torchrun in one process tree: a lost rank is a lost process, which restarts from its state.

Invariants:
    - A node that joins gets a desktop server. A lost or unusable node leaves the list, which clients read again.
    - Every process that waits for a node is in `waiting`, with the resources that it needs and since when.
"""

import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

from dart_gym.utils.durable_files import write_file
from dart_train.config.run_config import RUN_TOKEN_ENV, ConfigError, RunConfig
from dart_train.core.child_process import Process
from dart_train.core.train_errors import DataError
from dart_train.data.files.object_storage import open_storage
from dart_train.nodes import node_facts, ray_cluster
from dart_train.nodes.node_facts import DESKTOPS, NodeFacts
from dart_train.nodes.program_host import CERTIFICATE, HOST, KEY, PORT
from dart_train.nodes.remote_program import RemoteProgram
from dart_train.nodes.remote_ranks import RemoteRanks
from dart_train.nodes.run_on_nodes import described
from dart_train.placement.placement import Demand, Placement, PlacementError, demand
from dart_train.run.run_directory import RunDirectory
from dart_train.run.run_store import open_data
from dart_train.run.supervisor import ProcessCrashed, ProcessSpec, Supervisor, python_process

LOOK_S = 1.0
FACTS_S = 60.0
ANSWER_S = 15.0
AWAY = ("learn", "warmup")
"""Processes that need no files of the launcher."""
FIRST = "--node-rank=0"

START_A_DATABASE = """\
  docker run -d -p 3306:3306 -e MARIADB_ROOT_PASSWORD=SECRET -e MARIADB_DATABASE=dart mariadb:11
  export DART_DATA_URL=mysql+pymysql://root:SECRET@$(hostname -i)/dart     # and data.url_env: DART_DATA_URL"""


def check_shared(config: RunConfig) -> None:
    """Check that a configuration can run on several nodes.

    Raises:
        ConfigError: if it cannot; the message says what to set.
    """
    url = config.data.database_url()
    if url is None or url.startswith("sqlite"):
        raise ConfigError(
            "several nodes cannot share a SQLite file; start a database on a machine that all reach:\n"
            + START_A_DATABASE
        )
    if "://" not in (config.data.files or ""):
        raise ConfigError(
            "nodes have no directory in common: set data.files to a bucket that all reach, such as s3://bucket/dart"
        )
    if config.controls.supervised:
        raise ConfigError("controls.supervised is for one machine: set it to false for a run on Ray")


def check_reached(config: RunConfig, run: RunDirectory) -> None:
    """Check that database and object store answer, and that no other run of this name uses them.

    Raises:
        DataError: if one of them does not answer, or holds another run.
    """
    mark = run.root / "owner"
    if not mark.exists():
        write_file(mark, uuid.uuid4().hex)
    own = mark.read_text().encode()
    hurry = {"config_kwargs": {"connect_timeout": 5, "read_timeout": ANSWER_S, "retries": {"max_attempts": 1}}}
    files = f"{str(config.data.files).rstrip('/')}/{config.name}"
    storage = open_storage(files, hurry if files.startswith("s3") else None)
    storage.check_writable()
    if not storage.publish("owner", own) and storage.read("owner") != own:
        raise _taken(files, config, run)
    with open_data(config, run, ANSWER_S) as data:
        owner = data.fact("owner")
        if owner is None and not data.checkpoints():
            data.set_fact("owner", own.decode())
        elif owner != own.decode():
            raise _taken("the database", config, run)


def _taken(what: str, config: RunConfig, run: RunDirectory) -> DataError:
    return DataError(
        f"{what} holds a run {config.name!r} that {run.root} knows nothing of: choose another --name, go on with that "
        "run where its directory is, or remove its rows and files"
    )


def demand_of(config: RunConfig, gpus: int) -> Placement:
    """Return the resources that a run takes of a cluster with `gpus` GPUs; Ray chooses which ones. Pure.

    Raises:
        PlacementError: if there are too few GPUs, or the run wants to share GPUs in a way that Ray cannot.
    """
    wanted: Demand = demand(config, gpus)
    if wanted.gpus > gpus:
        raise PlacementError(
            f"this run wants {wanted.gpus} GPUs ({wanted.replicas} x {wanted.engine_gpus} for engines, "
            f"{wanted.trainer_gpus} for the trainer), and the cluster has {gpus}: add nodes, or lower "
            "rollout.engine.replicas, resources.engine_gpus or resources.trainer_ranks"
        )
    if wanted.shared and (wanted.engine_gpus > 1 or wanted.trainer_gpus > 1):
        raise PlacementError(
            "resources.share_gpus of several GPUs is for one machine: set it to false for a run on Ray"
        )
    if wanted.monitor_gpus:
        raise PlacementError(
            "the monitor's engine computes on a GPU, and on Ray the monitor runs beside the launcher, which has none: "
            "leave evaluation.monitor.every_rollouts out"
        )
    engines = (tuple(range(wanted.engine_gpus)),) * wanted.replicas
    return Placement(wanted, engines, tuple(range(wanted.trainer_gpus)))


def meeting(nodes: int) -> tuple[str, ...]:
    """Return the arguments of torchrun on the first of several nodes, to which the others connect. Pure."""
    return (f"--nnodes={nodes}", FIRST, f"--master-addr={HOST}", f"--master-port={PORT}")


class ClusterNodes:
    """The nodes of a cluster during one life of a launcher that is connected to it.

    Args:
        config: the run.
        run: its directory, with an absolute path.
        cluster: address of the cluster.
        placement: the resources that the run takes.

    Attributes:
        waiting: lines for people: processes that wait for a node, and problems of nodes.
        desktops_url: URL of the list of desktop servers.
    """

    def __init__(self, config: RunConfig, run: RunDirectory, cluster: str, placement: Placement) -> None:
        from ray.util.placement_group import placement_group

        self._run, self._wanted = run, placement.demand
        self._spec = described(config, run, cluster, shared=self._wanted.shared)
        self._programs: list[RemoteProgram] = []
        self._servers: dict[str, Supervisor] = {}
        self._facts: dict[str, NodeFacts | str] = {}
        self._asked: dict[str, tuple[Any, float]] = {}
        self._here = node_facts.node_facts()
        self._looked, self._offering = 0.0, False
        self._since = time.strftime("%H:%M:%S")
        nodes = self._wanted.trainer_nodes
        strategy = "PACK" if nodes == 1 else "STRICT_SPREAD"
        self._group = placement_group([self._ranks] * nodes, strategy, name=f"{config.name}/trainer")
        self.waiting: list[str] = []
        self._window = ray_cluster.open_window(config.name, str(run.root))  # the actor lives as long as this reference
        self._list = run.root / "desktops.txt"
        self.desktops_url = f"file://{self._list}"

    @property
    def _ranks(self) -> dict[str, float]:
        """Return the resources that the trainer's ranks together take of one node."""
        wanted, nodes = self._wanted, self._wanted.trainer_nodes
        gpus = wanted.trainer_memory if wanted.shared else wanted.trainer_gpus / nodes
        return {"CPU": wanted.ranks // nodes, **({"GPU": gpus} if gpus else {})}

    def start(self, spec: ProcessSpec, log: Path) -> Process:
        """Start a process: see `Supervisor`."""
        first = self._start(spec, log)
        if FIRST not in spec.argv:
            return first
        return RemoteRanks(first, lambda address: self._start_others(spec, log, address), self._wanted.trainer_nodes)

    def _start(self, spec: ProcessSpec, log: Path, node: int = 0) -> RemoteProgram:
        name = f"{spec.name}-{node}" if node else spec.name
        program = ray_cluster.start(self._spec, name, spec.argv, spec.env, self._asks(spec, node), log)
        self._programs = [one for one in self._programs if one.returncode is None] + [program]
        return program

    def _start_others(self, spec: ProcessSpec, log: Path, address: dict[str, str]) -> list[RemoteProgram]:
        """Start the ranks on all nodes but the first, whose address is known by now."""
        known = [word.replace(HOST, address[HOST]).replace(PORT, address[PORT]) for word in spec.argv]
        place = known.index(FIRST)
        nodes = range(1, self._wanted.trainer_nodes)
        argvs = [(*known[:place], f"--node-rank={node}", *known[place + 1 :]) for node in nodes]
        return [self._start(replace(spec, argv=argv), log, node) for node, argv in zip(nodes, argvs, strict=True)]

    def _asks(self, spec: ProcessSpec, node: int = 0) -> dict[str, Any]:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        if spec.asks:
            return spec.asks
        if spec.name not in AWAY:
            return ray_cluster.on_node(self._spec.home)
        asks, several = self._ranks, self._wanted.warmup_ranks
        if spec.name == "warmup":
            asks = {name: min(several, asked) for name, asked in asks.items()}
        gpus = {"num_gpus": asks["GPU"]} if "GPU" in asks else {}
        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=node)
        return {"num_cpus": asks["CPU"], **gpus, "scheduling_strategy": strategy}

    # --- desktops -----------------------------------------------------------------------------------------------

    def offer_desktops(self) -> None:
        """Start desktop servers on nodes from now on."""
        self._offering = True
        self.look(now=True)

    @property
    def supervisors(self) -> list[Supervisor]:
        """Supervisors of the desktop servers."""
        return list(self._servers.values())

    @property
    def servers(self) -> list[str]:
        """Addresses of the desktop servers that have been started."""
        found = []
        for supervisor in self._servers.values():
            for watched in supervisor.processes.values():
                values = watched.process.started if isinstance(watched.process, RemoteProgram) else None
                if values:
                    found.append(f"wss://{values[HOST]}:{values[PORT]}")
        return found

    def look(self, *, now: bool = False) -> None:
        """Check the nodes, at most once a second, and start or drop their desktop servers."""
        import ray

        if not now and time.monotonic() - self._looked < LOOK_S:
            return
        self._looked = time.monotonic()
        alive = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
        wrong = [self._look_at(node) for node in alive.values()] if self._offering else []
        for node in [node for node in self._servers if node not in alive]:
            self._servers.pop(node).stop_all(0.0)
            self._facts.pop(node, None)
        for node, supervisor in self._servers.items():
            try:
                supervisor.check()
            except ProcessCrashed as error:
                supervisor.stop_all(0.0)
                self._facts[node] = f"node {alive[node]['NodeManagerAddress']} holds no desktops: {error}"
        if self._offering:
            text = "".join(f"{url}\n" for url in self.servers)
            if not self._list.exists() or self._list.read_text() != text:
                write_file(self._list, text)
            if not text:
                wrong.append(f'desktops wait for a node with {{"{DESKTOPS}": ...}} since {self._since}')
        self.waiting = [*filter(None, (one.waiting for one in self._programs)), *filter(None, wrong)]

    def _look_at(self, node: dict[str, Any]) -> str:
        """Start to use a node that offers desktops; return its problem, or "" if there is no problem."""
        identity = node["NodeID"]
        name = node["NodeManagerAddress"]
        offered = node["Resources"].get(DESKTOPS, 0)
        if not offered:
            return ""
        facts = self._facts.get(identity) or self._ask(identity, name)
        if not isinstance(facts, NodeFacts):
            return facts
        if identity not in self._servers:
            arguments = [
                *("serve", "--config", str(self._run.config), "--listen", f"wss://{HOST}:{PORT}"),
                *("--tls-cert", CERTIFICATE, "--tls-key", KEY, "--token-env", RUN_TOKEN_ENV),
                *("--desktops", str(node_facts.desktops_of(offered, facts))),
            ]
            spec = python_process(f"desktops-{name}", "dart_gym.commands.gym_cli", *arguments, service=True)
            supervisor = self._servers[identity] = Supervisor(self._run.logs, elsewhere=self.start)
            supervisor.start(replace(spec, asks=ray_cluster.on_node(identity)))
        return ""

    def _ask(self, identity: str, name: str) -> NodeFacts | str:
        """Return what a node reports about itself, or why it cannot be used (yet)."""
        import ray

        if identity not in self._asked:
            question = ray.remote(node_facts.node_facts).options(**ray_cluster.on_node(identity), max_retries=0)
            self._asked[identity] = question.remote(), time.time()
        reference, asked = self._asked[identity]
        if not ray.wait([reference], timeout=0)[0]:
            silent = time.time() - asked
            return f"node {name} has not answered for {silent:.0f} s" if silent > FACTS_S else ""
        del self._asked[identity]
        try:
            facts: NodeFacts = ray.get(reference)
        except ray.exceptions.RayError as error:
            cause = str(getattr(error, "cause", None) or error).strip().splitlines()[-1]
            self._facts[identity] = f"node {name} cannot be used ({cause}): is the same dart-gui installed there?"
        else:
            self._facts[identity] = node_facts.why_unusable(name, facts, self._here) or facts
            if skew := node_facts.clock_skew(name, facts, asked, time.time()):
                ray_cluster.log.warning("%s", skew)
        return self._facts[identity]

    def close(self) -> None:
        """Stop the desktop servers and release the trainer's place."""
        from ray.util.placement_group import remove_placement_group

        for supervisor in self._servers.values():
            supervisor.stop_all()
        remove_placement_group(self._group)
