"""An episode of 500 steps on a full screen: memory stays flat, and it is stored in less than 40 MB."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from dart_agent.episodes.play import InMemory, play
from dart_agent.episodes.screenshots import ImageNames
from dart_agent.episodes.trajectory import Step
from dart_agent.policies.policy import Decision
from dart_agent.policies.random_policy import RandomPolicy
from dart_gym.core.actions import Press, Type
from dart_gym.core.outcomes import Observation
from dart_gym.sessions.session import Session
from dart_gym.tasks.catalog.registry import task_from_dict
from dart_gym.utils.processes import private_memory
from dart_train.data.files.trajectory_files import TrajectoryFiles

STEPS = 500
STORE_MB, GROWTH_MB = 40.0, 16.0
EDITOR = {
    "id": "long",
    "instruction": "Write.",
    "config": [{"type": "launch", "parameters": {"command": ["mousepad"]}}],
    "evaluator": {
        "func": "exact_match",
        "result": {"type": "vm_command_line", "command": "true"},
        "expected": {"type": "rule", "rules": {"expected": ""}},
    },
    "dart": {"desktop": {"width": 1920, "height": 1080}, "ready": {"window": "Mousepad"}},
}


class Writer(RandomPolicy):
    """Types, clicks and scrolls by chance in a window that fills the screen."""

    taken = 0

    async def act(self, observation: Observation) -> Decision:
        self.taken += 1
        if self.taken == 1:
            return Decision((Press(("f11",)),))
        return (
            Decision((Type(f"line {self.taken} of what is written\n"),))
            if self.taken % 3
            else await super().act(observation)
        )


class Stored(InMemory):
    """Stores each step at once, as a rollout does, and keeps its record without pixels."""

    def __init__(self, files: TrajectoryFiles) -> None:
        self.files, self.names, self.memory = files, ImageNames(), []

    def step(self, step: Step) -> Step:
        named, images = self.names.name(step)
        self.files.write_images(images)
        self.memory.append(private_memory([os.getpid()]) / 2**20)
        return named


class Watched:
    """A session that plays the editor, and measures its desktop each 50 steps."""

    def __init__(self, session: Session) -> None:
        self.session, self.memory = session, []

    async def reset(self, task, **fields):
        return await self.session.reset(task_from_dict(EDITOR), **fields)

    async def step(self, action):
        result = await self.session.step(action)
        if result.step_index % 50 == 0:
            self.memory.append(self.session.slot.memory_bytes() / 2**20)
        return result

    async def finish(self, terminal):
        return await self.session.finish(terminal)


def size_mb(directory: Path) -> float:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()) / 2**20


@pytest.mark.slow
@pytest.mark.desktop
@pytest.mark.timeout(2400)
async def test_an_episode_of_500_steps_keeps_memory_flat_and_the_store_small(tmp_path, capsys):
    files = TrajectoryFiles(tmp_path / "store")
    recorder = Stored(files)
    async with Session() as session:
        watched = Watched(session)
        played = await play(Writer(clicks_only=False), watched, "osworld/long", max_steps=STEPS, recorder=recorder)
    files.write_trajectory(replace(played, trajectory_id="long"))
    images = [path.stem for path in (tmp_path / "store" / "images").rglob("*.webp")]
    stored, (early, late) = size_mb(tmp_path / "store"), (recorder.memory[99], recorder.memory[-1])
    with capsys.disabled():
        print(f"\n{STEPS} steps at 1920x1080: {len(images)} screens, {stored:.1f} MB")
        print(f"memory: {early:.0f} MB after 100 steps, {late:.0f} MB at the end; desktop {watched.memory}")
    assert played.num_actions == STEPS == len(played.steps) and len(images) > STEPS / 2
    assert late - early < GROWTH_MB and watched.memory[-1] - watched.memory[1] < 4 * GROWTH_MB
    assert stored < STORE_MB
