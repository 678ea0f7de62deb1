"""Records the demonstrations that the warm-up needs; resumes after a break."""

import asyncio

from dart_agent.episodes.play_list import play_list
from dart_gym.tasks.catalog.parameters import FIRST_TRAINING_SEED
from dart_train.core.data_states import ORACLE_SOURCE
from dart_train.core.train_errors import DartTrainError
from dart_train.processes.process_context import ProcessContext
from dart_train.processes.run_policy import make_oracle
from dart_train.rollout.play.oracle_demonstrations import DemonstrationStore, plan_demonstrations
from dart_train.rollout.play.recorder import Recorder

SEEDS_PER_RUN = 100_000
"""Distance between the demonstration seeds of runs with neighbouring `seed`s."""

LEAST_SHARE = 0.9
"""An oracle that fails more often than this leaves room for is broken, and says so."""


def main(context: ProcessContext) -> None:
    """Record `demonstrations.per_task` successful episodes of every task."""
    config = context.config
    settings = config.demonstrations
    tasks = list(settings.tasks or config.train_tasks)
    counts = {task: settings.per_task_of.get(task, settings.per_task) for task in tasks}
    assignments = plan_demonstrations(counts, FIRST_TRAINING_SEED + config.seed * SEEDS_PER_RUN)
    new_policy = make_oracle(context.run.checkpoint(0), config)
    progress = context.progress()

    with context.open_data() as data:
        known = {(item.task_id, item.seed) for item in data.trajectories(source=ORACLE_SOURCE)}
        missing = [item for item in assignments if (item.task_id, item.seed) not in known]
        told = progress.counter(len(assignments), done=len(assignments) - len(missing))
        recorder = Recorder(data)
        store = DemonstrationStore(missing, recorder)
        try:
            asyncio.run(
                play_list(
                    context.client(),
                    new_policy,
                    store.keys,
                    concurrency=config.rollout.workers,
                    store=store,
                    on_episode=lambda episode: told(episode.task_id),
                )
            )
        finally:
            recorder.close()
        if recorder.failure is not None:
            raise recorder.failure
        if missing and store.kept < LEAST_SHARE * len(missing):
            raise DartTrainError(
                f"the oracles succeeded in only {store.kept} of {len(missing)} demonstrations; run "
                f"`dart-agent eval --policy oracle` on {', '.join(tasks)} to see which one is broken"
            )
