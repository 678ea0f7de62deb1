from __future__ import annotations

import asyncio
import tracemalloc
from dataclasses import replace

import broken_suite
import numpy as np
import pytest

from dart_agent.engines.base.engine import Generation, Prompt
from dart_agent.episodes.play import make_step
from dart_agent.episodes.screenshots import decode_image, image_hash, name_images, prompt_bytes
from dart_agent.episodes.trajectory import Trajectory
from dart_agent.policies.policy import Decision, Episode
from dart_gym.core.actions import Click, Done, Fail, Wait, action_from_dict
from dart_gym.core.errors import UnknownTaskError
from dart_gym.core.outcomes import Observation, StepResult, TerminalState
from dart_gym.sessions.session import Session
from dart_train.data.files.trajectory_files import TrajectoryFiles
from dart_train.rollout.play.rollouts import (
    PHASES,
    GroupOver,
    Limits,
    Rollout,
    new_trajectory_id,
)
from dart_train.rollout.schedule.scheduler import Assignment
from tests.helpers.waiting import wait_until

ASSIGNMENT = Assignment("fake/two-steps", 10_007, "fake/two-steps@10007#0.0", 3, 0, 99, 4)


class Scripted:
    """A policy that decides what it is told to, seeing all screenshots so far."""

    def __init__(self, *decisions: Decision) -> None:
        self._decisions = list(decisions)
        self.episode: Episode | None = None
        self.frames: list[np.ndarray] = []

    def reset(self, episode: Episode) -> None:
        self.episode = episode

    async def act(self, observation: Observation) -> Decision:
        self.frames.append(observation.screenshot)
        decision = self._decisions.pop(0)
        if decision.generation is None:
            return decision
        prompt = Prompt(tuple(range(len(self.frames))), tuple(self.frames))
        return Decision(
            decision.actions, decision.text, decision.thought, terminal=decision.terminal, prompt=prompt,
            generation=decision.generation,
        )  # fmt: skip


def says(*actions, version: int = 1, terminal: TerminalState | None = None) -> Decision:
    generation = Generation("text", (5, 6), (-0.5, -0.25), (version, version), "stop", "r0", (0.1, 0.2))
    return Decision(tuple(actions), "text", "thought", terminal=terminal, generation=generation)


async def played(policy: Scripted, assignment: Assignment = ASSIGNMENT) -> tuple[Trajectory, list[str]]:
    phases: list[str] = []
    async with Session() as session:
        return await Rollout(assignment).play(session, policy, phases.append), phases


async def test_a_rollout_whose_group_is_over_is_broken_off_after_its_step():
    rollout = Rollout(ASSIGNMENT, over=lambda key: key == ASSIGNMENT.group_key)
    async with Session() as session:
        with pytest.raises(GroupOver):
            await rollout.play(session, Scripted(says(Wait(0.0)), says(Done())))
        assert len(rollout.trajectory.steps) == 1
        again = Rollout(ASSIGNMENT, over=lambda key: True)  # the desktop can be played on at once
        done = await again.play(session, Scripted(says(Done())))
    assert done.terminal is TerminalState.DONE  # what has ended is not broken off


async def test_a_rollout_becomes_a_trajectory_with_shared_images_and_exact_ids():
    policy = Scripted(says(Wait(0.0)), says(Wait(0.0), version=2), says(Done()))
    episode, phases = await played(policy)
    assert policy.episode == Episode("fake/two-steps", episode.instruction, 99)
    assert phases == ["reset", *["generate", "step"] * 3] and set(phases) <= set(PHASES)
    assert episode.terminal is TerminalState.DONE and episode.score == 0.0 and episode.trainable
    trajectory, images = name_images(episode)
    assert (trajectory.seed, trajectory.group_key) == (10_007, ASSIGNMENT.group_key)
    assert (trajectory.oldest_version, trajectory.newest_version) == (1, 2)
    assert [step.prompt_ids for step in trajectory.steps] == [(0,), (0, 1), (0, 1, 2)]
    assert [len(step.image_hashes) for step in trajectory.steps] == [1, 2, 3]
    assert set(images) == {name for step in trajectory.steps for name in step.image_hashes}
    assert all(image_hash(image) == name for name, image in images.items())
    assert all(step.response_ids == (5, 6) and step.logprobs == (-0.5, -0.25) for step in trajectory.steps)
    assert action_from_dict(trajectory.steps[2].actions[0]) == Done()
    assert trajectory.timings["engine"] == pytest.approx(0.6) and trajectory.timings["reset"] > 0
    assert trajectory.task_hash and trajectory.ended_at > 0


async def test_actions_after_the_end_are_not_carried_out():
    episode, _ = await played(Scripted(says(Wait(0.0), Fail("no way"), Click(1, 1))))
    assert episode.terminal is TerminalState.FAIL and episode.num_actions == 2


async def test_what_cannot_be_done_is_kept_with_the_step():
    episode, _ = await played(Scripted(says(Click(5000, 5000)), says(Done())))
    trajectory, _ = name_images(episode)
    assert "5000" in trajectory.steps[0].action_error and trajectory.steps[1].action_error == ""


async def test_a_parse_error_is_scored_and_trained_on():
    episode, _ = await played(Scripted(says(terminal=TerminalState.PARSE_ERROR)))
    assert episode.terminal is TerminalState.PARSE_ERROR and episode.score == 0.0
    assert episode.trainable and len(episode.steps) == 1 and episode.num_actions == 0


async def test_a_model_error_is_never_trained_on_and_keeps_only_answered_steps():
    episode, _ = await played(Scripted(says(Wait(0.0)), Decision(terminal=TerminalState.MODEL_ERROR)))
    assert episode.terminal is TerminalState.MODEL_ERROR and not episode.trainable and len(episode.steps) == 1


async def test_the_step_limit_of_the_assignment_holds():
    episode, _ = await played(Scripted(*[says(Wait(0.0)) for _ in range(9)]))
    assert episode.terminal is TerminalState.STEP_LIMIT and episode.num_actions == 4


class Endless(Scripted):
    """Never decides after what it is told to."""

    async def act(self, observation: Observation) -> Decision:
        if not self._decisions:
            await asyncio.Event().wait()
        return await super().act(observation)


async def test_a_policy_that_never_decides_ends_its_episode():
    async with Session() as session:
        rollout = Rollout(ASSIGNMENT)
        episode = await rollout.play(session, Endless(says(Wait(0.0))), limits=Limits(turn_s=0.05))
        assert episode.terminal is TerminalState.MODEL_ERROR and episode.lost_by == "engine" and episode.score is None
        assert "no decision within 0.05 s" in episode.detail and len(episode.steps) == 1
        again = await Rollout(ASSIGNMENT).play(session, Scripted(says(Done())), limits=Limits(turn_s=60.0))
        assert again.trainable  # the session is as good as before


async def test_a_time_out_of_the_policys_own_is_its_own():
    class Impatient(Scripted):
        async def act(self, observation: Observation) -> Decision:
            raise TimeoutError("its own")

    async with Session() as session:
        with pytest.raises(TimeoutError, match="its own"):
            await Rollout(ASSIGNMENT).play(session, Impatient(), limits=Limits(turn_s=60.0))


async def test_the_time_of_an_episode_is_limited_and_it_is_scored():
    async with Session() as session:
        limits = Limits(episode_s=1e-9)
        episode = await Rollout(ASSIGNMENT).play(session, Scripted(says(Wait(0.0)), says(Done())), limits=limits)
    assert episode.terminal is TerminalState.TIME_LIMIT and episode.trainable and len(episode.steps) == 1


async def test_what_is_cut_off_keeps_its_steps_and_has_no_score():
    rollout, policy = Rollout(ASSIGNMENT), Endless(says(Wait(0.0)), says(Wait(0.0), version=2))
    async with Session() as session:
        playing = asyncio.create_task(rollout.play(session, policy))
        async with asyncio.timeout(60):
            while len(rollout.trajectory.steps) < 2:
                await asyncio.sleep(0.001)
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)
    episode = rollout.cut_off(TerminalState.INTERRUPTED, "told to stop", "stop")
    assert not episode.trainable and episode.score is None and episode.num_actions == 2
    assert episode.instruction.startswith("Click") and episode.task_hash and episode.timings["step"] > 0
    assert prompt_bytes(rollout.trajectory) == sum(image.nbytes for image in policy.frames[:2])
    trajectory, images = name_images(episode)
    assert trajectory.terminal is TerminalState.INTERRUPTED and len(trajectory.steps) == 2 and images


def drawn_screen(seed: int) -> np.ndarray:
    """1932x1092, as a 7B sees them: windows and lines of text on a plain ground."""
    rng = np.random.default_rng(seed)
    screen = np.full((1092, 1932, 3), 240, np.uint8)
    for x, y in zip(rng.integers(0, 1800, 2000), rng.integers(0, 1060, 2000), strict=True):
        screen[y : y + 12, x : x + 8] = rng.integers(0, 256, 3)
    return screen


@pytest.mark.thorough
def test_a_running_rollout_keeps_the_screens_of_its_newest_prompt_alone_as_pixels(data):
    steps, window = 20, 5
    rollout, shown, hashes = Rollout(ASSIGNMENT), list[np.ndarray](), list[str]()
    tracemalloc.start()
    try:
        for number in range(steps):
            shown = [*shown, drawn_screen(number)][-window:]
            hashes.append(image_hash(shown[-1]))
            decision, observation = says(Wait(0.0)), Observation(shown[-1], "i")
            decision = replace(decision, prompt=Prompt((number,), tuple(shown)))
            rollout.step(make_step(observation, decision, StepResult(observation), {}))
        raw = shown[-1].nbytes
        wait_until(lambda: tracemalloc.get_traced_memory()[0] < (window + 2) * raw + steps * raw / 8)
    finally:
        tracemalloc.stop()
    assert prompt_bytes(rollout.trajectory) < steps * raw / 8
    trajectory, images = name_images(replace(rollout.trajectory, run_id=data.run_id, instruction="i", task_hash="h"))
    assert [step.image_hashes[-1] for step in trajectory.steps] == hashes and set(images) == set(hashes)
    assert all(image_hash(decode_image(png)) == name for name, png in images.items())
    data.record(replace(trajectory, terminal=TerminalState.DONE, score=1.0, ended_at=1.0), images)
    assert all(image_hash(data.files.read_image(name)) == name for name in hashes)
    webp = TrajectoryFiles(data.files.root / "webp", image_format="webp")
    webp.write_images({hashes[0]: images[hashes[0]]})
    assert image_hash(webp.read_image(hashes[0])) == hashes[0]


async def test_a_task_that_cannot_be_set_up_is_lost_and_an_unknown_one_is_an_error():
    async with Session() as session:
        broken = Assignment(broken_suite.SETUP, 10_007, "k", 0, 0, 99)
        episode = await Rollout(broken).play(session, Scripted())
        assert episode.terminal is TerminalState.ENV_ERROR and episode.lost_by == "environment"
        assert "a file that is gone" in episode.detail and episode.score is None
        with pytest.raises(UnknownTaskError):
            await Rollout(Assignment("fake/nothing", 1, "k", 0, 0, 0)).play(session, Scripted())


def test_names_of_trajectories_are_safe_and_unique():
    odd = Assignment("osworld/a b/ü:1", 1, "k", 0, 0, 0)
    names = {new_trajectory_id(odd) for _ in range(100)}
    assert len(names) == 100 and all("/" not in name and " " not in name and len(name) < 192 for name in names)
