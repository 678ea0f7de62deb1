"""A small world to learn in: the task `fake/two-steps` on drawn desktops, played in step with the trainer.

The policy is a tiny Qwen2.5-VL that has been warmed up on demonstrations that are often wrong: it clicks on buttons,
but not reliably on those that are asked for. Rollouts are played with the weights of `lag` versions ago, recorded by
the real data manager, leased and trained on.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dart_agent.engines.base.engine import Prompt, Sampling
from dart_agent.engines.embedded.qwen_runner import QwenRunner, SampledRow
from dart_agent.episodes.trajectory import Step, Trajectory
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.prompting.conversation import Conversation, ConversationConfig
from dart_gym.core.actions import Click
from dart_gym.core.outcomes import TerminalState
from dart_gym.desktops.base.desktop import ActionError
from dart_gym.desktops.fake_desktop import FakeDesktop
from dart_gym.tasks.suites.fake_suite import TASKS, FakeScenario
from dart_train.data.files.trajectory_files import image_hash
from dart_train.data.manager.data_manager import DataManager
from dart_train.trainer.batches.demonstrations import Demonstration, encode
from dart_train.trainer.batches.samples import Sample
from dart_train.trainer.grpo_trainer import DartGRPOTrainer, load_model
from dart_train.trainer.supervised import SupervisedConfig, train_supervised

TASK = next(task for task in TASKS if task.id == "fake/two-steps")
CLICK = re.compile(r"Action: click\(start_box='\((\d{1,4}),(\d{1,4})\)'\)")
GROUP_SIZE = 16
SCREENS = (1, 2, 3, 4)
"""Seeds of the task: as many layouts and instructions."""


def click_text(action: Click) -> str:
    return f"Action: click(start_box='({action.x},{action.y})')"


@dataclass
class Episode:
    """One rollout on a desktop of its own."""

    seed: int
    conversation: Conversation
    desktop: FakeDesktop = field(default_factory=lambda: FakeDesktop(TASK.desktop))
    scenario: FakeScenario = field(default_factory=FakeScenario)
    instruction: str = ""
    steps: list[Step] = field(default_factory=list)
    hashes: list[str] = field(default_factory=list)
    over: bool = False

    async def begin(self, screens: dict[str, NDArray[np.uint8]]) -> None:
        await self.desktop.start()
        self.instruction = (await self.scenario.prepare(self.desktop, TASK, self.seed)).instruction
        self.conversation.begin(self.instruction)
        await self.look(screens)

    async def look(self, screens: dict[str, NDArray[np.uint8]]) -> None:
        frame = await self.desktop.screenshot()
        self.hashes.append(image_hash(frame))
        screens[self.hashes[-1]] = frame
        self.conversation.observe(frame)

    async def act(self, prompt: Prompt, row: Any, text: str, version: int, screens: dict) -> None:
        """Take one sampled response."""
        shown = tuple(self.hashes[-len(prompt.images) :])
        self.steps.append(Step(prompt.token_ids, shown, row.response_ids, row.logprobs, (version, version), text=text))
        self.conversation.respond(row.response_ids)
        found = CLICK.fullmatch(text)
        if found is None:
            self.over = True
            return
        click = Click(int(found[1]), int(found[2]))
        try:
            await self.desktop.perform(click)
        except ActionError:
            self.over = True
            return
        hit = bool(self.desktop.clicked)
        self.over = not hit or await self.scenario.after_action(self.desktop, click) or len(self.steps) == 2
        if not self.over:
            await self.look(screens)

    async def score(self) -> float:
        return (await self.scenario.evaluate(self.desktop, TerminalState.DONE, [])).score or 0.0


class TwoSteps:
    """Plays a group of rollouts of each screen whenever the trainer looks for a lease: it is the trainer's `stop`.

    Args:
        data: where rollouts are recorded.
        model_dir: of the policy.
        rounds: after so many it ends.
        lag: rollouts are played with the weights of so many rounds ago.
        stream: seed of the sampling.
        seeds: of the task.
    """

    def __init__(
        self, data: DataManager, model_dir: Path, *, rounds: int, lag: int = 0, stream: int = 0, seeds=SCREENS
    ) -> None:
        self.data, self.rounds, self.stream, self.seeds = data, rounds, stream, seeds
        self.tokens, self.vision = ModelTokens.load(model_dir), VisionSpec.from_dir(model_dir)
        self.model = load_model(model_dir).eval()
        self.screens: dict[str, NDArray[np.uint8]] = {}
        self.success: list[dict[int, float]] = []
        self.trainer: DartGRPOTrainer
        self._weights: deque[dict[str, Any]] = deque(maxlen=lag + 1)

    def play(self) -> bool:
        """One round; whether it was the last."""
        if len(self.success) >= self.rounds:
            return True
        current = {name: value.detach().clone() for name, value in self.trainer.model.state_dict().items()}
        self._weights.append(current)
        self.model.load_state_dict(self._weights[0])
        version = max(self.trainer.publisher.version - len(self._weights) + 1, 0)
        self.success.append(asyncio.run(self._round(version)))
        return False

    @property
    def means(self) -> list[float]:
        """Success of each round."""
        return [float(np.mean(list(scores.values()))) for scores in self.success]

    async def _round(self, version: int) -> dict[int, float]:
        config = ConversationConfig(style="short", screenshots=1)
        episodes = [
            Episode(seed, Conversation(self.tokens, self.vision, config))
            for seed in self.seeds
            for _ in range(GROUP_SIZE)
        ]
        for episode in episodes:
            await episode.begin(self.screens)
        runner, number = QwenRunner(self.model, self.vision), len(self.success)
        for step in range(2):
            acting = [episode for episode in episodes if not episode.over]
            prompts = [episode.conversation.prompt() for episode in acting]
            if not prompts:
                break
            for place, (episode, row) in enumerate(
                zip(acting, self._sample(runner, prompts, number, step), strict=True)
            ):
                text = self.tokens.decode(row.response_ids)
                await episode.act(prompts[place], row, text, version, self.screens)
        scores: dict[int, list[float]] = {seed: [] for seed in self.seeds}
        for place, episode in enumerate(episodes):
            reward = await episode.score()
            scores[episode.seed].append(reward)
            self._record(episode, reward, f"{number}-{episode.seed}", f"{number}-{place}")
        return {seed: float(np.mean(values)) for seed, values in scores.items()}

    def _sample(self, runner: QwenRunner, prompts: list[Prompt], number: int, step: int) -> list[Any]:
        samplings = [
            Sampling(
                max_tokens=8, seed=random.Random(f"{self.stream}/{number}/{step}/{place}").getrandbits(31),
                stop_ids=self.tokens.stop_ids, suppressed_ids=self.tokens.suppressed_ids,
            )
            for place in range(len(prompts))
        ]  # fmt: skip
        return runner.sample(prompts, samplings)

    def _record(self, episode: Episode, reward: float, group: str, name: str) -> None:
        trajectory = Trajectory(
            f"{TASK.id}-{episode.seed}", episode.seed, episode.instruction, "0", name, self.data.run_id, group,
            terminal=TerminalState.DONE, score=reward, steps=tuple(episode.steps),
        )  # fmt: skip
        images = {name: self.screens[name] for step in episode.steps for name in step.image_hashes}
        self.data.record(trajectory, images)


def warm_up(model_dir: Path, target: Path, *, right: float, seed: int = 0, never: tuple[int, ...] = ()) -> None:
    """A policy that clicks on the button asked for in a share of its steps, else on another one.

    Args:
        model_dir: untrained.
        target: where the result goes.
        right: share of right demonstrations.
        seed: of choices and training.
        never: screens whose demonstrations all click on the same wrong button.
    """
    tokens, vision = ModelTokens.load(model_dir), VisionSpec.from_dir(model_dir)
    screens: dict[str, NDArray[np.uint8]] = {}
    samples = asyncio.run(_demonstrations(tokens, vision, screens, right, random.Random(seed), never))
    config = SupervisedConfig(max_steps=300, learning_rate=5e-3, warmup_steps=5, threads=1, seed=seed)
    train_supervised(model_dir, samples, screens.__getitem__, target, config)


async def _demonstrations(
    tokens: ModelTokens, vision: VisionSpec, screens: dict, right: float, rng: random.Random, never: tuple[int, ...]
) -> list[Sample]:
    samples: list[Sample] = []
    conversation = Conversation(tokens, vision, ConversationConfig(style="short", screenshots=1))
    for seed in SCREENS:
        episode = Episode(seed, conversation)
        await episode.begin(screens)
        oracle: list[Click] = []
        for _ in range(2):
            click = await episode.scenario.oracle(episode.desktop)
            oracle.append(click)
            await episode.desktop.perform(click)
            await episode.look(screens)
        others = [button.center for button in episode.desktop.buttons]
        for step in range(2):
            for _ in range(40):
                target = oracle[step]
                wrong = [place for place in others if place != (target.x, target.y)]
                if seed in never:
                    target = Click(*wrong[0])
                elif rng.random() >= right:
                    target = Click(*rng.choice(wrong))
                responses = (*map(click_text, oracle[:step]), click_text(target))
                shown = Demonstration(TASK.id, episode.instruction, tuple(episode.hashes[: step + 1]), responses)
                samples.append(encode([shown], conversation, tokens, screens.__getitem__)[-1])
    return samples


def learn(
    world: TwoSteps, start: Path, config: Any, *, prepare: Callable[[DartGRPOTrainer], None] | None = None
) -> list[float]:
    """Train until the rounds are over; returns the success of each."""
    world.trainer = DartGRPOTrainer(start, config, world.data, stop=world.play)
    if prepare is not None:
        prepare(world.trainer)
    world.trainer.run()
    return world.means


def record_oracle(world: TwoSteps, seed: int) -> None:
    """Record the oracle's success on a screen, by exact ids: the experience pool takes it."""
    asyncio.run(_record_oracle(world, seed))


async def _record_oracle(world: TwoSteps, seed: int) -> None:
    config = ConversationConfig(style="short", screenshots=1)
    episode = Episode(seed, Conversation(world.tokens, world.vision, config))
    await episode.begin(world.screens)
    for _ in range(2):
        text = click_text(await episode.scenario.oracle(episode.desktop))
        row = SampledRow(tuple(world.tokens.response(text)), (), "stop", 0.0)
        await episode.act(episode.conversation.prompt(), row, text, 0, world.screens)
    trajectory = Trajectory(
        f"{TASK.id}-{seed}", seed, episode.instruction, "0", f"oracle-{seed}", world.data.run_id, "oracle", "oracle",
        terminal=TerminalState.DONE, score=await episode.score(), steps=tuple(episode.steps),
    )  # fmt: skip
    assert trajectory.score == 1.0
    world.data.record(trajectory, {name: world.screens[name] for name in episode.hashes})
