"""Forks of the experience pool's successes, for groups of their tasks that failed as a whole.

Of a task that the policy never solves every fork of its own episodes fails as well. Near the end of a success there is
less left to do, so some continuations succeed and others fail; from them the earlier steps are to be learned, too.
Sources: Salimans and Chen, "Learning Montezuma's Revenge from a Single Demonstration" (arXiv 1812.03381), whose start
moves from the end to the beginning; Xi et al., "Training Large Language Models for Reasoning through Reverse Curriculum
Reinforcement Learning" (R3, arXiv 2402.05808), where starts of all difficulties at once did better. So the rule
`random` does here.
"""

from collections.abc import Iterator
from dataclasses import replace

from dart_agent.episodes.trajectory import Pixels, Trajectory
from dart_train.data.curation import experience_pool
from dart_train.data.curation.fork_settings import best_steps
from dart_train.data.curation.rules import PoolSampling
from dart_train.data.manager.recording import Recording
from dart_train.rollout.forks.fork import Fork, can_fork, fork_at


def forks_of_successes(data: Recording, task_id: str, key: str) -> Iterator[tuple[int, Fork]]:
    """Yield the seed and the fork of successes of a task, at most `per_group`; chance comes from a group's key.

    Raises:
        DataError: if they cannot be read.
    """
    config = data.config.forks
    found = data.read(experience_pool.successes, task_id, data.config.pool_sources)
    for number in range(config.per_group):
        name = f"{key}+{number}"
        chosen = experience_pool.choose(found, PoolSampling.UNIFORM, name)
        if chosen is None:
            return
        episode = data.load_whole(chosen.trajectory_id)
        for _, step in best_steps([episode], config, can_fork, name)[:1]:
            yield episode.seed, fork_at(_with_pixels(data, episode, step), step, None, config.tolerance)


def _with_pixels(data: Recording, episode: Trajectory, step: int) -> Trajectory:
    """The episode with the screenshots of one step's prompt in memory, as if it had just been played."""
    images = tuple(data.load_image(name) for name in episode.steps[step].image_hashes)
    steps = list(episode.steps)
    steps[step] = replace(steps[step], pixels=Pixels(prompt=images))
    return replace(episode, steps=tuple(steps))
