"""The phases of a run, one after the other, each in processes of its own: what `dart-train run` does.

    prepare -> demonstrate -> warmup -> before -> rl -> after -> [added phases] -> [supervised control] -> report

Invariants:
    - The launcher holds no data. Phases pass their results on through the run directory and the database alone, so
      the same command resumes a killed run at the phase where it was.
    - The environment cluster runs from the first phase that needs desktops to the last one. The supervised control
      runs from the end of the reinforcement learning on. Every other process runs for its own phase only. When the
      launcher ends, for whatever reason, all of them end.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import os
import shutil
import signal
import time
from collections.abc import Callable, Collection
from pathlib import Path

from rich.console import Console

from dart_agent.engines.base.engine_kind import gpu_environment
from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.cluster.client.server_health import look_at
from dart_gym.cluster.wire.cluster_address import parse_address
from dart_gym.core.project_pages import page
from dart_gym.utils.owned_directories import make_owned_directory
from dart_train.config.added_phases import added_phases
from dart_train.config.resume_changes import Change, changes, may_change, record
from dart_train.config.run_config import ConfigError, RunConfig, dump_config, load_config
from dart_train.core.demo_models import DEMO_MODELS
from dart_train.core.stop_event import StopEvent
from dart_train.core.train_errors import Interrupted, TrainedNothing
from dart_train.nodes import cluster_nodes, ray_cluster
from dart_train.nodes.cluster_nodes import ClusterNodes
from dart_train.placement.gpu_discovery import gpus_here
from dart_train.placement.placement import ENGINE_MEMORY, Placement, place
from dart_train.run.run_directory import (
    MAX_SOCKET_PATH,
    RunDirectory,
    RunDirectoryError,
    RunDiskFullError,
    RunLock,
    RunState,
    read_json,
    write_text,
)
from dart_train.run.run_status import launcher, write_processes
from dart_train.run.supervisor import ProcessSpec, Supervisor, python_process
from dart_train.terminal.panel import Panel

TICK_S = 0.25
ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
"""Settings of torch's allocator. Micro-batches differ in size, so memory in blocks of fixed sizes would be wasted."""
SUPERVISED = "supervised"
START = ("prepare", "demonstrate", "warmup", "base", "before", "greedy_before")  # before the reinforcement learning
WARM_VERSION = 1
"""Version of the weights with which the reinforcement learning starts; 0 is the model as built or loaded."""


class Pipeline:
    """Runs all phases of one run."""

    def __init__(
        self,
        config: RunConfig,
        run: RunDirectory,
        panel: Panel,
        lock: RunLock,
        placement: Placement,
        nodes: ClusterNodes | None = None,
    ) -> None:
        self.nodes = nodes
        self.config = config
        self.run = run
        self.panel = panel
        self.placement = placement
        self.state = RunState(run.root / "state.json")
        self.supervisor = Supervisor(
            run.logs,
            [lock.fileno()],
            nodes.start if nodes is not None else None,
            config.data.unavailable_timeout_s,
        )
        self._stop = StopEvent()
        self._sockets: Path | None = None
        self._cluster_url = config.cluster.url
        self._cluster_answered = False

    def __enter__(self) -> Pipeline:
        self._handlers = {number: signal.signal(number, self._end) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def _end(self, number: int, frame: object) -> None:
        self._stop.set()

    def __exit__(self, *exc: object) -> None:
        self.supervisor.stop_all()
        if self.nodes is not None:
            self.nodes.close()
        if self._sockets is not None:
            shutil.rmtree(self._sockets, ignore_errors=True)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    # --- the phases ---------------------------------------------------------------------------------------------

    def phases(self) -> list[Phase]:
        """Return the phases of this configuration, in order."""
        return phases_of(self.config)

    def execute(self, only: Collection[str] | None = None) -> None:
        """Run every unfinished phase.

        Raises:
            Interrupted: if the run was stopped and can be resumed.
            DartTrainError: if a process crashed.
        """
        self.state.values["lives"] += 1
        self.write_state(self.state.save)
        phases = [phase for phase in self.phases() if only is None or phase.name in only]
        self.panel.set_phases([(phase.name, phase.title, self.state.finished(phase.name)) for phase in phases])
        for phase in phases:
            if self.state.finished(phase.name):
                continue
            self.write_state(functools.partial(self.state.begin, phase.name))
            self.panel.begin(phase.name)
            phase.run(self)
            self.write_state(functools.partial(self.state.finish, phase.name))
            self.panel.finish(phase.name)

    def write_state(self, write: Callable[[], None]) -> None:
        """Save the state of the run. While the disk is full, wait for space, as the processes of the run do.

        Raises:
            RunDirectoryError: if the disk stays full for too long, or cannot be written for another reason.
            Interrupted: if the launcher is told to stop meanwhile.
        """
        while not self.state_written(write):
            write = self.state.save  # the state in memory holds the change by now
            self.tick()

    def state_written(self, write: Callable[[], None]) -> bool:
        """Try to save the state once. Return False if the disk is full and the time limit has not passed."""
        disk = self.supervisor.disk
        try:
            write()
        except RunDiskFullError as error:
            disk.failed(error, "state")
            if disk.timed_out:
                raise
            return False
        disk.succeeded("state")
        return True

    def _train(self) -> None:
        """Run the four processes of DART side by side."""
        self._start_cluster()
        cluster = ("--url", str(self._cluster_url))
        self._start("data", service=True)
        self._start("rollout", *cluster)
        if self.placement.demand.shared:
            self._until_engines_serve()
        self._start("learn")
        if self.config.evaluation.monitor.every_rollouts:
            self._start("monitor", *cluster, service=True)
        self._until_finished("rl", "learn")  # after its `max_steps`, or once rollouts have ended and are trained on
        if self.config.evaluation.monitor.every_rollouts:
            self.supervisor.stop("monitor")
        self.supervisor.stop("rollout")
        self.supervisor.stop("data")

    def _until_engines_serve(self) -> None:
        """Wait for the engines that share GPUs with the trainer, because they measure the free memory when they start.

        Memory that a trainer allocates meanwhile would count as the engine's, and its cache would become too small.
        """
        written, began = self.run.metrics("rollout"), time.time()
        while not (written.exists() and written.stat().st_mtime >= began):
            if self.supervisor.processes["rollout"].finished:
                return
            self.tick()

    def _test_after(self) -> None:
        """Evaluate after training. The supervised control, which needs one processor, begins at the same time."""
        if self.config.controls.supervised:
            self._start_supervised_control()
        self._evaluate("after", None)

    def _evaluate(self, label: str, version: int | None, *arguments: str) -> None:
        which = () if version is None else ("--version", str(version))
        if version is None and self.config.evaluation.final == "best" and self.run.best.is_dir():
            which = ("--model", str(self.run.best))
        self._process("evaluate", "--label", label, *which, *arguments, desktops=True, phase=label)

    def _greedy(self, label: str, version: int | None) -> None:
        self._evaluate(label, version, "--trained-only", "--temperature", "0")

    def _start_supervised_control(self) -> None:
        """Continue supervised training from the warm start, on the same demonstrations, for as long as RL took."""
        if SUPERVISED in self.supervisor.processes or (self.run.supervised / "config.json").exists():
            return
        self._start_phase(SUPERVISED)

    def _supervised_control(self) -> None:
        self._start_supervised_control()
        if SUPERVISED in self.supervisor.processes:
            self._until_finished(SUPERVISED, SUPERVISED)
        arguments = ("--label", SUPERVISED, "--model", str(self.run.supervised), "--trained-only")
        self._process("evaluate", *arguments, desktops=True, phase=SUPERVISED)

    def _added(self, name: str) -> None:
        """Run a phase that a package adds."""
        self._phase(name, desktops=True)

    # --- processes ----------------------------------------------------------------------------------------------

    def _phase(self, phase: str, *, desktops: bool = False, threads: int = 1) -> None:
        """Run a phase in a process that has the name of the phase."""
        if desktops:
            self._start_cluster()
        self._start_phase(phase, *(("--url", str(self._cluster_url)) if desktops else ()), threads=threads)
        self._until_finished(phase, phase)

    def _start_phase(self, phase: str, *arguments: str, threads: int = 1) -> None:
        kind = "warmup" if phase in ("warmup", SUPERVISED) else "phase"
        self._start(phase, *arguments, threads=threads, kind=kind)

    def _process(self, command: str, *arguments: str, desktops: bool = False, phase: str | None = None) -> None:
        if desktops:
            self._start_cluster()
            arguments += ("--url", str(self._cluster_url))
        self._start(command, *arguments)
        self._until_finished(phase or command, command)

    def _start(
        self, process: str, *arguments: str, service: bool = False, threads: int = 1, kind: str | None = None
    ) -> None:
        words = (*words_of(process, str(self.run.config)), "--runs-dir", str(self.run.root.parent), *arguments)
        spec = python_process(process, "dart_train", *words, service=service, threads=threads)
        self.supervisor.start(placed(spec, kind or process, self.placement))

    def _start_cluster(self) -> None:
        if self._cluster_url is not None:
            if self.config.cluster.url is not None and not self._cluster_answered:
                reach_cluster(self._cluster_url, self.config.cluster.token())
                self._cluster_answered = True
            return
        if self.nodes is not None:
            self._cluster_url = self.nodes.desktops_url
            self.nodes.offer_desktops()
            while not self.nodes.servers:
                self.tick()
            return
        path = self.run.root.resolve() / "cluster.sock"
        if len(bytes(path)) > MAX_SOCKET_PATH:
            self._sockets = make_owned_directory("train")
            path = self._sockets / "cluster.sock"
        self._cluster_url = f"ws+unix://{path}"
        self.supervisor.start(placed(cluster_server(self._cluster_url, self.run.config), "cluster", self.placement))

    def _until_finished(self, phase: str, *names: str) -> None:
        """Watch until the named processes have ended well. Raises what `Supervisor.check` raises, and `Interrupted`."""
        touched = time.monotonic()
        while not all(self.supervisor.processes[name].finished for name in names):
            self.tick()
            if time.monotonic() - touched > 2.0:
                known = self.state.values["phases"]
                self.state_written(
                    functools.partial(self.state.touch, phase if phase in known else next(reversed(known)))
                )
                waiting = self.nodes.waiting if self.nodes is not None else []
                supervisors = [self.supervisor, *(self.nodes.supervisors if self.nodes is not None else ())]
                self.state_written(functools.partial(write_processes, self.run, supervisors, waiting))
                touched = time.monotonic()
        for name in names:
            del self.supervisor.processes[name]

    def tick(self) -> None:
        """Wait for a moment, then check processes and nodes. Raises as `Supervisor.check`, and `Interrupted`."""
        if self._stop.wait(TICK_S):
            raise Interrupted("stopped; the same command resumes the run")
        self.supervisor.check()
        if self.nodes is not None:
            self.nodes.look()
        self.panel.refresh(self.supervisor, self.nodes.waiting if self.nodes is not None else ())


@dataclasses.dataclass(frozen=True, slots=True)
class Phase:
    """One phase of a run.

    Attributes:
        name: its name in `state.json` of the run.
        title: its title in the panel.
        run: runs the phase, in processes of a pipeline.
        wanted: returns whether a configuration has this phase.
    """

    name: str
    title: str
    run: Callable[[Pipeline], None]
    wanted: Callable[[RunConfig], bool] = lambda config: True


PHASES = (
    Phase("prepare", "model", lambda line: line._phase("prepare")),
    Phase(
        "demonstrate",
        "demonstrations",
        lambda line: line._phase("demonstrate", desktops=True),
        wanted=lambda config: bool(config.demonstrations.per_task),
    ),
    Phase(
        "warmup",
        "warm-up",
        lambda line: line._phase("warmup", threads=line.config.warmup.threads),
        wanted=lambda config: config.warmup.limited,
    ),
    Phase(
        "base",
        "test base",
        lambda line: line._evaluate("base", 0, "--trained-only"),
        wanted=lambda config: config.warmup.limited and config.model.path in DEMO_MODELS,
    ),
    Phase("before", "test before", lambda line: line._evaluate("before", WARM_VERSION)),
    Phase(
        "greedy_before",
        "greedy before",
        lambda line: line._greedy("greedy_before", WARM_VERSION),
        wanted=lambda config: config.evaluation.greedy,
    ),
    Phase("rl", "training", lambda line: line._train()),
    Phase("after", "test after", lambda line: line._test_after()),
    Phase(
        "greedy_after",
        "greedy after",
        lambda line: line._greedy("greedy_after", None),
        wanted=lambda config: config.evaluation.greedy,
    ),
)
"""The first phases of every run, in order."""
LAST_PHASES = (
    Phase(
        SUPERVISED,
        "supervised only",
        lambda line: line._supervised_control(),
        wanted=lambda config: config.controls.supervised,
    ),
    Phase("report", "report", lambda line: line._process("report")),
)
"""The last phases of every run, after those that a configuration adds."""


def phases_of(config: RunConfig) -> list[Phase]:
    """Return the phases of a configuration, in order: the pipeline's own, and those that `controls.phases` adds."""
    added = [
        Phase(name, phase.title, functools.partial(Pipeline._added, name=name))
        for name, phase in added_phases(config.controls.phases).items()
    ]
    return [phase for phase in (*PHASES, *added, *LAST_PHASES) if phase.wanted(config)]


def words_of(process: str, config: str) -> tuple[str, ...]:
    """Return the arguments of `dart-train` that start a process of a run. Pure."""
    return (process, config) if process in ("evaluate", "report") else ("process", config, process)


def placed(spec: ProcessSpec, command: str, placement: Placement) -> ProcessSpec:
    """Return a process with its GPUs and cores; it sees no other GPU. Pure.

    Args:
        spec: the process without any limits.
        command: its command or phase: "learn", "rollout", "warmup", "cluster", ...
        placement: how this machine is split.
    """
    wanted = placement.demand
    argv = spec.argv
    gpus = placement.trainer[:0]
    shared = ("--gpu-memory", f"{wanted.trainer_memory:g}") if wanted.shared else ()
    match command:
        case "learn":
            gpus, argv = placement.trainer, argv + shared
            if wanted.ranks > 1:
                argv = _in_ranks(argv, wanted.ranks // wanted.trainer_nodes, wanted.trainer_nodes)
        case "rollout" | "evaluate":
            gpus = placement.trainer[:1]  # for the process that sends weights; engines get theirs by --engine-gpus
            for one in placement.engines:
                argv += ("--engine-gpus", ",".join(map(str, one)))
            argv += ("--gpu-memory", f"{wanted.engine_memory:g}") if wanted.engine_gpus else ()
        case "monitor":  # it has an engine, and a process on the same GPU that sends weights to it
            gpus = placement.monitor
            argv += ("--engine-gpus", ",".join(map(str, placement.monitor)))
            argv += ("--gpu-memory", f"{ENGINE_MEMORY:g}") if placement.monitor else ()
        case "warmup":
            gpus = placement.trainer[: wanted.warmup_ranks]
            if wanted.warmup_ranks > 1:
                argv = _in_ranks(argv, wanted.warmup_ranks)
        case "cluster" if placement.cores:
            argv = ("taskset", "--cpu-list", ",".join(map(str, placement.cores)), *argv)
    env = spec.env | gpu_environment(gpus)
    if gpus and command in ("learn", "warmup") and ALLOCATOR not in os.environ:
        env[ALLOCATOR] = "expandable_segments:True"
    return dataclasses.replace(spec, argv=argv, env=env)


def _in_ranks(argv: tuple[str, ...], each: int, nodes: int = 1) -> tuple[str, ...]:
    """Return a process's command as `each` ranks on each of `nodes` nodes."""
    meet = ("--standalone",) if nodes == 1 else cluster_nodes.meeting(nodes)
    return (argv[0], "-m", "dart_train.launch.rank_launcher", *meet, f"--nproc-per-node={each}", *argv[1:])


def cluster_server(url: str, config: Path) -> ProcessSpec:
    """Return the environment cluster of a run, as the section `cluster` of its configuration file describes it."""
    arguments = ("serve", "--config", str(config), "--listen", url)
    spec = python_process("cluster", "dart_gym.commands.gym_cli", *arguments, service=True)
    return dataclasses.replace(spec, look=functools.partial(look_at, Path(parse_address(url).path)))


def reach_cluster(url: str, token: str | None = None) -> None:
    """Check that a configured cluster answers, before processes retry for minutes. Raises `ClusterError`."""
    asyncio.run(ClusterClient(url, token=token).status())


def open_run(config: RunConfig, runs_dir: Path) -> RunDirectory:
    """Create or reopen the directory of a run.

    Raises:
        RunDirectoryError: if it belongs to another configuration, or cannot be written.
    """
    run = RunDirectory(runs_dir / config.name)
    run.create()
    afresh = f"remove {run.root} to start afresh, or choose another --name"
    if run.config.exists():
        try:
            # compared by value: the text lacks settings that a later version of the package has added
            known = load_config(run.config)
        except ConfigError as error:
            raise RunDirectoryError(f"{run.config} is damaged ({' '.join(str(error).split())}); {afresh}") from error
        _resume_with(run, changes(known, config), config, afresh)
    elif (run.root / "state.json").exists():
        raise RunDirectoryError(
            f"{run.config} is missing, so the settings of {run.root} are unknown; {afresh}, "
            f"or restore it, for example from the same command with --dry-run --show"
        )
    else:
        write_text(run.config, dump_config(config))
    return run


def _resume_with(run: RunDirectory, found: list[Change], config: RunConfig, afresh: str) -> None:
    """Apply changed settings to a run, and record them.

    Raises:
        RunDirectoryError: if one of them defines the run.
    """
    refused = [change for change in found if not may_change(change.key)]
    if refused:
        listed = "; ".join(map(str, refused[:5])) + (f"; and {len(refused) - 5} more" if len(refused) > 5 else "")
        raise RunDirectoryError(
            f"{run.root} was made by another configuration, and these settings define it: {listed}. Put them back, or "
            f"{afresh}. {page('guides/training')} lists the settings that may change"
        )
    pid = launcher(run) if found else None
    if pid is not None:
        raise RunDirectoryError(
            f"{run.root} is running (process {pid}) with other values of {', '.join(item.key for item in found)}: stop "
            f"it first, with dart-train stop {config.name}"
        )
    if found:
        record(run.changes, found, RunState(run.root / "state.json").values["lives"] + 1)
        write_text(run.config, dump_config(config))
        for change in found:
            Console(stderr=True).print(f"changed setting: {change}", markup=False, highlight=False, soft_wrap=True)


def execute(
    config: RunConfig,
    runs_dir: Path,
    *,
    plain: bool = False,
    only: Collection[str] | None = None,
    cluster: str | None = None,
    timeout_s: float = ray_cluster.CONNECT_S,
) -> RunDirectory:
    """Run or resume everything that a configuration describes, or some of its phases.

    Args:
        config: the run.
        runs_dir: where its directory is.
        plain: print lines instead of a live panel.
        only: names of the phases to run; None for all.
        cluster: address of a Ray cluster, or "auto"; None runs everything on this machine.
        timeout_s: time limit for the first answer of the Ray cluster.
    """
    if cluster is not None:
        cluster_nodes.check_shared(config)
        address = ray_cluster.connect(cluster, timeout_s)
        return _execute_on_nodes(config, runs_dir.resolve(), address, plain=plain, only=only)
    place_here(config, occupied=False)
    run = open_run(config, runs_dir)
    with RunLock(run) as lock:
        placement = place_here(config)  # after the lock: processes of an earlier life, on the same GPUs, have ended
        Console().print(placement.sentence, highlight=False, soft_wrap=True)
        with Panel(config, run, plain=plain) as panel, Pipeline(config, run, panel, lock, placement) as pipeline:
            pipeline.execute(only)
    return run


def _execute_on_nodes(
    config: RunConfig, runs_dir: Path, address: str, *, plain: bool, only: Collection[str] | None
) -> RunDirectory:
    placement = cluster_nodes.demand_of(config, ray_cluster.gpus())
    run = open_run(config, runs_dir)
    with RunLock(run) as lock:
        cluster_nodes.check_reached(config, run)
        Console().print(placement.sentence, highlight=False, soft_wrap=True)
        nodes = ClusterNodes(config, run, address, placement)
        with Panel(config, run, plain=plain) as panel, Pipeline(config, run, panel, lock, placement, nodes) as pipeline:
            pipeline.execute(only)
    return run


def place_here(config: RunConfig, *, occupied: bool = True) -> Placement:
    """Split this machine between desktops, engines and trainer.

    Args:
        config: the run.
        occupied: whether memory of GPUs that is in use at the moment counts as taken.

    Raises:
        PlacementError: if the machine has too few GPUs or cores.
        GPUError: if the GPUs cannot be queried.
    """
    gpus = gpus_here()
    if not occupied:
        gpus = [dataclasses.replace(gpu, used_mb=0) for gpu in gpus]
    return place(config, gpus, sorted(os.sched_getaffinity(0)))


def say_result(run: RunDirectory, console: Console) -> None:
    """Print the last lines of a run: its result, and where the report lies. Raises `TrainedNothing`."""
    figures = read_json(run.figures, f"write it again: dart-train report {run.config} --runs-dir {run.root.parent}")
    before, after = figures.get("success_before"), figures.get("success_after")
    if before is not None and after is not None:
        console.print(
            f"\n[bold]Success on held-out seeds: {100 * before:.0f} % before, [green]{100 * after:.0f} %[/] after[/] "
            f"({figures.get('rollouts') or 0:,} rollouts in {(figures.get('rl_wall_s') or 0) / 60:.1f} min "
            "of reinforcement learning)"
        )
    console.print(f"Report: {run.report}", highlight=False, soft_wrap=True)
    if figures.get("trained_steps") == 0:
        raise TrainedNothing(
            "the run has trained nothing: no optimizer step changed the weights. See what happened to the groups "
            f"(dart-train status {run.root}): all dropped, without signal, or never complete"
        )
