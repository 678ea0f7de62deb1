"""The commands `dart-train data ...`: a run as one file, successes of others, and the check of `data_care_commands`."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from dart_gym.commands.json_output import JsonOption, write_json
from dart_gym.utils.shown_text import printable
from dart_gym.utils.waits import waiting_for
from dart_train.commands import data_care_commands
from dart_train.commands.data_tables import counts_table, pool_table
from dart_train.commands.options import (
    DEFAULT_RUNS_DIR,
    ConfigPath,
    Name,
    Overrides,
    RunsDir,
    Timeout,
    on_run,
    process_context,
)
from dart_train.config.run_config import ConfigError
from dart_train.core.data_states import Provenance

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dart_agent.episodes.trajectory import Trajectory
    from dart_train.data.maintenance.transfer import Transferred
    from dart_train.processes.process_context import ProcessContext

app = typer.Typer(no_args_is_help=True, help="Look after a run's data. `dart-train status` shows it.")
app.command()(data_care_commands.check)


@app.command("export")
@on_run(reads=True)
def export_(
    context: ProcessContext, file: Annotated[Path, typer.Argument(metavar="FILE", help="a tar archive")]
) -> None:
    """Write a run's rows, trajectories and screenshots (not its weights) into one archive, also while it runs."""
    from dart_train.data.maintenance.transfer import export_run

    with context.open_data() as manager:
        with waiting_for(f"the archive {file}, which is written"):
            done = export_run(manager, file)
    _say(file, done)


@app.command("import")
def import_(
    config: ConfigPath,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="an archive of `data export`; with --pool the directory or URL of a run, an evaluation or an import",
        ),
    ],
    pool: Annotated[
        bool, typer.Option("--pool", help="import the successes of SOURCE into the experience pool of an existing run")
    ] = False,
    provenance: Annotated[
        Provenance | None, typer.Option("--as", help="with --pool: the origin of the episodes; hinted if not given")
    ] = None,
    hint_marker: Annotated[
        str | None,
        typer.Option(help="with --pool: text with which the hint begins in the instruction of hinted episodes"),
    ] = None,
    task: Annotated[
        list[str] | None, typer.Option(help="with --pool: import episodes of this task only; may be repeated")
    ] = None,
    overrides: Overrides = None,
    name: Name = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    timeout: Timeout = None,
    json_file: JsonOption = None,
) -> None:
    """Read an exported archive into a run without rows, which may have another name and database.

    With --pool, import the successes of another run, of an evaluation or of `dart-agent import` into a run's pool.
    """
    if not pool and (provenance is not None or hint_marker is not None or task):
        raise ConfigError("--as, --hint-marker and --task choose episodes for the experience pool: give --pool as well")
    if not pool and ("://" in source or Path(source).is_dir()):
        raise ConfigError(f"{source} is no archive of `dart-train data export`; --pool imports the successes of a run")
    with process_context(config, overrides, name, runs_dir, timeout=timeout, reads=pool) as context:
        if pool:
            origin = provenance or Provenance.HINTED
            _fill_pool(context, source, origin, hint_marker, task or [], json_file)
        else:
            _read_archive(context, Path(source), json_file)


def _read_archive(context: ProcessContext, file: Path, json_file: Path | None) -> None:
    from dart_train.data.maintenance.transfer import import_run

    with context.open_data() as manager:
        with waiting_for(f"the archive {file}, which is read"):
            done = import_run(manager, file)
    write_json(json_file, dataclasses.asdict(done))
    _say(file, done)


def _fill_pool(
    context: ProcessContext,
    source: str,
    provenance: Provenance,
    hint_marker: str | None,
    tasks: list[str],
    json_file: Path | None,
) -> None:
    """Import the successes of another run, and show the content of the pool."""
    from dart_agent.models.model_tokens import ModelTokens
    from dart_train.data.maintenance.pool_import import fill_pool, import_successes, read_successes

    console = Console()
    with context.open_data() as data, waiting_for("the pool, which is filled"):
        fill_pool(data)
        tokens = ModelTokens.load(context.run.checkpoint(0)) if hint_marker else None
        report = import_successes(
            data,
            read_successes(source, tasks=tasks),
            provenance=provenance,
            origin=source,
            encode=tokens.encode if tokens else None,
            write=functools.partial(_written_down, context) if provenance is not Provenance.HINTED else None,
            hint_marker=hint_marker,
        )
        now = data.status()
    counts = dataclasses.asdict(report)
    problems = counts.pop("problems")
    console.print(counts_table(f"from {source}", counts))
    for problem in problems:
        console.print(Text(printable(problem), "yellow"))
    write_json(json_file, list(map(dataclasses.asdict, now.pool)))
    console.print(pool_table(now) if now.pool else Text("the pool is empty", "dim"))


def _written_down(
    context: ProcessContext, trajectory: Trajectory, images: dict[str, NDArray[np.uint8]]
) -> tuple[Trajectory, dict[str, NDArray[np.uint8]]]:
    """Return a trajectory with tokens of the run's model. One that has none is written in the words of that model.

    Raises:
        InvalidTrajectoryError: if it cannot be written in this way.
    """
    from dart_agent.formats import get_format
    from dart_agent.models.image_patches import VisionSpec
    from dart_agent.models.model_tokens import ModelTokens
    from dart_train.rollout.play.written_down import Writer

    if any(step.prompt_ids for step in trajectory.steps):
        return trajectory, images
    model, agent = context.run.checkpoint(0), context.config.agent
    writer = Writer(ModelTokens.load(model), VisionSpec.from_dir(model), get_format(agent.format), agent)
    return writer.write(trajectory, images)


def _say(file: Path, done: Transferred) -> None:
    text = f"{file}: {sum(done.rows.values())} rows, {done.trajectories} trajectories, {done.images} screenshots"
    Console(soft_wrap=True).print(text, markup=False, highlight=False)
