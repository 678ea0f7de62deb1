"""The control that takes a run of its own: the same run with rewards shuffled between trajectories must not learn."""

from pathlib import Path

from dart_train.config.run_config import RunConfig
from dart_train.core.train_errors import DartTrainError
from dart_train.launch import pipeline
from dart_train.processes import write_report
from dart_train.processes.process_context import ProcessContext
from dart_train.run.run_directory import RunDirectory, read_json, write_json

SUFFIX = "-shuffled"


def shuffled(config: RunConfig) -> RunConfig:
    """The same run, except that the rewards of every lease are shuffled among its trajectories."""
    return config.model_copy(
        update={
            "name": config.name + SUFFIX,
            "description": "Control: rewards are shuffled between the trajectories of a batch.",
            "trainer": config.trainer.model_copy(update={"shuffle_rewards": True}),
            "controls": config.controls.model_copy(update={"supervised": False, "phases": {}}),
            "evaluation": config.evaluation.model_copy(update={"beside": (), "greedy": False}),
        }
    )


def main(config: RunConfig, runs_dir: Path, *, plain: bool = False) -> RunDirectory:
    """Run the control for the run's report, or resume it.

    Raises:
        DartTrainError: if the run is not finished.
    """
    run = RunDirectory(runs_dir / config.name)
    if not run.figures.exists():
        raise DartTrainError(f"{run.root} has no report yet; finish the run first: dart-train run CONFIG")
    control = pipeline.execute(shuffled(config), runs_dir, plain=plain)
    outcome = read_json(control.scores("after"), f"remove {control.root} and run the controls again")
    run.scores("shuffled").parent.mkdir(parents=True, exist_ok=True)
    write_json(run.scores("shuffled"), {**outcome, "label": "shuffled"})
    write_report.main(ProcessContext(config, run))
    return run
