"""`dart-train`: the decoupled trainer, all modules at once or one at a time."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from dart_agent.engines.base import EngineError
from dart_gym.errors import DartGymError
from dart_gym.processes import exit_status
from dart_train.bench.cli import app as bench_app
from dart_train.config import RunConfig, dump_config, load_config
from dart_train.errors import DartTrainError, Interrupted
from dart_train.rundir import explained_file_errors

if TYPE_CHECKING:
    from dart_train.commands.context import ModuleContext

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
app.add_typer(bench_app, name="bench")

ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="a YAML file, see configs/")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="override, such as rollout.slots=2")
]
Name = Annotated[str | None, typer.Option(help="name of the run; its directory is RUNS_DIR/NAME")]
RunsDir = Annotated[Path, typer.Option(help="where the runs are kept")]
ClusterUrl = Annotated[str | None, typer.Option("--cluster", help="URL of the environment cluster")]

DEFAULT_RUNS_DIR = Path("runs")
INTERRUPTED = 130


def _load(config: Path, overrides: list[str] | None, name: str | None, *, check_trainer: bool = True) -> RunConfig:
    return load_config(config, [*(overrides or []), *([f"name={name}"] if name else [])], check_trainer=check_trainer)


@contextlib.contextmanager
def _context(
    config: Path, overrides: list[str] | None, name: str | None, runs_dir: Path, cluster: str | None = None
) -> Iterator[ModuleContext]:
    """What a module needs; what the file system does to it meanwhile is explained."""
    from dart_train.commands.context import ModuleContext
    from dart_train.pipeline import open_run

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    loaded = _load(config, overrides, name, check_trainer=False)
    with explained_file_errors(runs_dir / loaded.name):
        yield ModuleContext(loaded, open_run(loaded, runs_dir), cluster)


@app.command()
def run(
    config: ConfigPath,
    overrides: Overrides = None,
    name: Name = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the resolved configuration and end")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="lines instead of a live panel")] = False,
) -> None:
    """Run everything that CONFIG describes, or go on with it: modules as processes, watched and restarted."""
    from dart_train import pipeline

    loaded = _load(config, overrides, name)
    if dry_run:
        pipeline.check(loaded)
        sys.stdout.write(dump_config(loaded))
        return
    with explained_file_errors(runs_dir / loaded.name):
        pipeline.say_result(pipeline.execute(loaded, runs_dir, plain=plain), Console())


@app.command()
def controls(
    config: ConfigPath,
    overrides: Overrides = None,
    name: Name = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    plain: Annotated[bool, typer.Option("--plain", help="lines instead of a live panel")] = False,
) -> None:
    """Repeat a finished run with shuffled rewards, which must not learn, and add that to its report."""
    from dart_train import pipeline
    from dart_train.commands import controls as command

    loaded = _load(config, overrides, name, check_trainer=False)
    with explained_file_errors(runs_dir / loaded.name):
        pipeline.say_result(command.main(loaded, runs_dir, plain=plain), Console())


@app.command()
def prepare(
    config: ConfigPath, overrides: Overrides = None, name: Name = None, runs_dir: RunsDir = DEFAULT_RUNS_DIR
) -> None:
    """Place the model that the run starts from and publish it as version 0."""
    from dart_train.commands import prepare as command

    with _context(config, overrides, name, runs_dir) as context:
        command.main(context)


@app.command()
def demonstrate(
    config: ConfigPath,
    overrides: Overrides = None,
    name: Name = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    cluster: ClusterUrl = None,
) -> None:
    """Record demonstrations by the scripted oracles."""
    from dart_train.commands import demonstrate as command

    with _context(config, overrides, name, runs_dir, cluster) as context:
        command.main(context)


@app.command()
def warmup(
    config: ConfigPath,
    overrides: Overrides = None,
    name: Name = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    continue_to: Annotated[Path | None, typer.Option(help="go on from the warm start and save here instead")] = None,
    seconds: Annotated[float | None, typer.Option(help="with --continue-to: how long")] = None,
) -> None:
    """Train on the demonstrations and publish version 1."""
    from dart_train.commands import warmup as command

    with _context(config, overrides, name, runs_dir) as context:
        command.main(context, continue_to=continue_to, seconds=seconds)


@app.command()
def evaluate(
    config: ConfigPath,
    label: Annotated[str, typer.Option(help="name of the evaluation: eval/LABEL.json")],
    overrides: Overrides = None,
    name: Name = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    cluster: ClusterUrl = None,
    version: Annotated[int | None, typer.Option(help="published version; the newest if not given")] = None,
    model: Annotated[Path | None, typer.Option(help="a model directory instead of a version")] = None,
    trained_only: Annotated[bool, typer.Option("--trained-only", help="leave out the tasks beside")] = False,
    temperature: Annotated[float | None, typer.Option(help="0 for greedy")] = None,
) -> None:
    """Play held-out seeds with fixed weights."""
    from dart_train.commands import evaluate as command

    chosen: dict[str, Any] = {"version": version, "model": model, "temperature": temperature}
    with _context(config, overrides, name, runs_dir, cluster) as context:
        command.main(context, label=label, trained_only=trained_only, **chosen)


@app.command("constant-click")
def constant_click(
    config: ConfigPath,
    overrides: Overrides = None,
    name: Name = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    cluster: ClusterUrl = None,
) -> None:
    """Measure the best constant click of every trained task."""
    from dart_train.commands import constant_click as command

    with _context(config, overrides, name, runs_dir, cluster) as context:
        command.main(context)


@app.command()
def data(
    config: ConfigPath, overrides: Overrides = None, name: Name = None, runs_dir: RunsDir = DEFAULT_RUNS_DIR
) -> None:
    """Be the data manager's process: expire, return leases, keep statistics."""
    from dart_train.data.service import run_data_service

    with _context(config, overrides, name, runs_dir) as context, context.open_data() as manager:
        run_data_service(
            manager,
            context.run.metrics("data"),
            slots=context.config.rollout.slots,
            sweep_interval_s=context.config.data.sweep_interval_s,
        )


@app.command()
def rollout(
    config: ConfigPath,
    overrides: Overrides = None,
    name: Name = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    cluster: ClusterUrl = None,
) -> None:
    """Play rollouts with engine replicas until the budget is spent."""
    from dart_train.commands import rollout as command

    with _context(config, overrides, name, runs_dir, cluster) as context:
        command.main(context)


@app.command()
def learn(
    config: ConfigPath, overrides: Overrides = None, name: Name = None, runs_dir: RunsDir = DEFAULT_RUNS_DIR
) -> None:
    """Train on leased groups and publish versions."""
    from dart_train.commands import learn as command

    with _context(config, overrides, name, runs_dir) as context:
        command.main(context)


@app.command()
def report(
    config: ConfigPath, overrides: Overrides = None, name: Name = None, runs_dir: RunsDir = DEFAULT_RUNS_DIR
) -> None:
    """Write report.html and report.json of a run, also while it goes on."""
    from dart_train.commands import report as command

    with _context(config, overrides, name, runs_dir) as context:
        command.main(context)


def main() -> None:
    """Entry point: errors that a person must act on become one message, not a traceback."""
    try:
        app()
    except Interrupted as error:
        Console(stderr=True).print(Text(str(error), "yellow"))
        sys.exit(INTERRUPTED)
    except (DartTrainError, DartGymError, EngineError) as error:
        Console(stderr=True, soft_wrap=True).print(Text.assemble(("error:", "red"), f" {error}"))
        sys.exit(exit_status(hopeless=getattr(error, "hopeless", False)))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
