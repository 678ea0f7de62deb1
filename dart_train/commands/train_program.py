"""The decoupled trainer: all processes at once, or one at a time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from rich.console import Console

from dart_gym.commands.added_commands import mount_added
from dart_gym.commands.json_output import placed, write_json
from dart_gym.commands.program import Program, add_common_options
from dart_gym.utils.waits import waiting_for
from dart_train.commands.data_commands import app as data_app
from dart_train.commands.engine_commands import app as engines_app
from dart_train.commands.gpu_check_command import check_gpu
from dart_train.commands.options import (
    DEFAULT_RUNS_DIR,
    ConfigPath,
    EngineGPUs,
    GPUMemory,
    Name,
    Overrides,
    Ray,
    RunsDir,
    load,
    on_run,
    run_root,
    runs_dir_of,
)
from dart_train.commands.parity_command import parity
from dart_train.commands.plan_command import plan
from dart_train.commands.train_init import init
from dart_train.commands.watch_commands import app as watch_app
from dart_train.config.run_config import ConfigError, dump_config
from dart_train.run.run_directory import explained_file_errors

if TYPE_CHECKING:
    from dart_train.processes.process_context import ProcessContext

app = typer.Typer(cls=Program, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
add_common_options(app, "dart-train")
app.add_typer(data_app, name="data")
app.add_typer(watch_app)
app.add_typer(engines_app, name="engines")
app.command()(init)
app.command()(parity)
app.command()(plan)
app.command("check-gpu")(check_gpu)


@app.command()
def run(
    config: ConfigPath,
    overrides: Overrides = None,
    name: Name = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="check, say what is wrong, start nothing")] = False,
    show: Annotated[bool, typer.Option("--show", help="with --dry-run: print the whole configuration")] = False,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", callback=placed, help="with --dry-run: configuration and problems"),
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="lines instead of a live panel")] = False,
    start_only: Annotated[bool, typer.Option(help="stop before the reinforcement learning")] = False,
    ray: Ray = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="with --ray: seconds to wait for the cluster")] = 15.0,
) -> None:
    """Run everything that CONFIG describes, or resume it. Processes are watched, and restarted when they crash."""
    with waiting_for("the program to load"):
        from dart_train.launch import pipeline
        from dart_train.preflight.problems import refuse
        from dart_train.preflight.run_check import check_elsewhere, check_run

    loaded = load(config, overrides, name)
    root, own = run_root(config, loaded, runs_dir, named=name is not None)
    runs_dir = runs_dir_of(root, loaded) if own else runs_dir
    if (show or json_file is not None) and not dry_run:
        raise ConfigError("--show and --json belong to --dry-run")
    if dry_run:
        with waiting_for("the check of the run"):
            checked = check_run(loaded, runs_dir) if ray is None else check_elsewhere(loaded)
        if show:
            sys.stdout.write(dump_config(loaded))
            sys.stdout.flush()
        where = checked.placement.sentence if checked.placement is not None else ""
        settings = yaml.safe_load(dump_config(loaded))
        write_json(json_file, {"configuration": settings, "placement": where, "problems": checked.problems})
        console = Console(stderr=show, soft_wrap=True)  # with --show the standard output is YAML alone
        if where:
            console.print(where, highlight=False)
        refuse(checked.problems)
        if ray is not None:
            from dart_train.nodes.ray_cluster import connect

            console.print(f"the Ray cluster {connect(ray, timeout)} answers", highlight=False)
        console.print(f"{loaded.name}: no problem found, and nothing was started", highlight=False, markup=False)
        return
    # This very run may be using the GPUs; `pipeline.execute` waits for its processes.
    with waiting_for("the check of the run"):
        checked = check_run(loaded, runs_dir, occupied=False) if ray is None else check_elsewhere(loaded)
    refuse(checked.problems)
    with explained_file_errors(runs_dir / loaded.name):
        only = pipeline.START if start_only else None
        finished = pipeline.execute(loaded, runs_dir, plain=plain, only=only, cluster=ray, timeout_s=timeout)
    if not start_only:
        pipeline.say_result(finished, Console())


@app.command()
@on_run(url=True)
def evaluate(
    context: ProcessContext,
    label: Annotated[str, typer.Option(help="name of the evaluation: eval/LABEL/scores.json")],
    version: Annotated[int | None, typer.Option(help="published version; the newest if not given")] = None,
    model: Annotated[Path | None, typer.Option(help="a model directory instead of a version")] = None,
    trained_only: Annotated[
        bool, typer.Option("--trained-only", help="leave out the tasks of evaluation.beside")
    ] = False,
    temperature: Annotated[float | None, typer.Option(help="0 for greedy")] = None,
    engine_gpus: EngineGPUs = None,
    gpu_memory: GPUMemory = None,
) -> None:
    """Play held-out seeds with fixed weights."""
    from dart_train.processes import evaluate_version as command
    from dart_train.rollout.settings.rollout_config import EnginePlaces

    chosen: dict[str, Any] = {"version": version, "model": model, "temperature": temperature}
    chosen["places"] = EnginePlaces.parse(engine_gpus or (), gpu_memory)
    command.main(context, label=label, trained_only=trained_only, **chosen)


@app.command()
@on_run(url=True)
def process(
    context: ProcessContext,
    call: typer.Context,
    which: Annotated[
        str,
        typer.Argument(
            metavar="PROCESS",
            help="prepare, demonstrate, warmup, data, rollout, learn, monitor, supervised, or a phase that "
            "controls.phases names",
        ),
    ],
    plain: Annotated[bool, typer.Option("--plain", help="rollout: log lines instead of a live dashboard")] = False,
    engine_gpus: EngineGPUs = None,
    gpu_memory: GPUMemory = None,
) -> None:
    """Run one process of a run by hand, on a node of your own. `dart-train run` starts all of them, in order.

    data, rollout, learn and monitor run side by side; each of the others is a phase of its own. Under torchrun, learn
    and warmup run in as many ranks as torchrun starts.
    """
    from dart_train.processes import run_process as command

    written = {
        "--url": call.params["url"],
        "--plain": plain,
        "--engine-gpus": engine_gpus,
        "--gpu-memory": gpu_memory,
    }
    options = command.Options(plain, engine_gpus or [], gpu_memory)
    command.main(context, which, options, [option for option, value in written.items() if value])


@app.command()
@on_run(reads=True)
def report(context: ProcessContext) -> None:
    """Write report.html and report.json of a run, also while it runs."""
    with waiting_for("the program to load"):
        from dart_train.processes import write_report as command

    with waiting_for("the report to be written"):
        command.main(context)
    typer.echo(context.run.report)


mount_added(app, "train")
