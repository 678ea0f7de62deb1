"""GRPO through the head beside GRPO of coordinates in text: rollouts of fake/click-button, in one process.

    python -m benchmarks.agent.pointer_grpo MODEL_DIR OUT_DIR [--updates 20] [--episodes 200]

What a run does with eight processes, one after the other, with the same parts: the policy planner+grounder behind an
engine, groups of rollouts of one screen, the trainer's log-probabilities and objective, versions that the engine loads.
Prints the success on held-out seeds before and after, with Wilson's 95 % intervals, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray

from dart_agent.engines.base.engine import Sampling
from dart_agent.engines.embedded.transformers_engine import TransformersEngine
from dart_agent.episodes.play import play
from dart_agent.episodes.trajectory import Trajectory
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.policies.planned_policies import planned_policies
from dart_agent.policies.planner_grounder import InstructionPlanner
from dart_gym.sessions.session import Session
from dart_gym.tasks.catalog.parameters import FIRST_TRAINING_SEED
from dart_gym.utils.rates import wilson_interval
from dart_train.trainer.batches.collator import Collator, ImageCache, Sample
from dart_train.trainer.losses.dart_objective import ObjectiveConfig, Scored, objective
from dart_train.trainer.losses.surrogates import Normalizer
from dart_train.trainer.policy_logprobs import response_logprobs
from dart_train.trainer.weights import checkpoint
from dart_train.trainer.weights.model_loading import load_model

TASK, GROUPS, GROUP_SIZE = "fake/click-button", 4, 8


@dataclass
class Learner:
    """One policy, its trainer and its desktop."""

    start: Path
    engine: TransformersEngine
    session: Session
    max_tokens: int
    learning_rate: float

    def __post_init__(self) -> None:
        sampling = Sampling(max_tokens=self.max_tokens, training=True)
        make = planned_policies(self.start, sampling, InstructionPlanner())
        self._policy = make(self.engine)
        greedy = planned_policies(
            self.start, Sampling(max_tokens=self.max_tokens, temperature=0.0), InstructionPlanner()
        )
        self._greedy = greedy(self.engine)
        self._model, self._tokens = load_model(self.start), ModelTokens.load(self.start)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), self.learning_rate, weight_decay=0.0)

    async def success(self, episodes: int, *, greedy: bool = False) -> dict[str, float]:
        """Share of held-out seeds on which the right button was clicked, and its interval."""
        policy = self._greedy if greedy else self._policy
        played = [await play(policy, self.session, TASK, seed=seed) for seed in range(episodes)]
        right = sum(bool(one.success) for one in played)
        low, high = wilson_interval(right, episodes)
        return {"rate": right / episodes, "low": low, "high": high}

    async def update(self, number: int) -> float:
        """Play groups and make one step of GRPO; returns the mean reward."""
        played: list[tuple[Trajectory, float, int]] = []
        rewards = []
        for group in range(GROUPS):
            seed = FIRST_TRAINING_SEED + number * GROUPS + group
            own = [
                await play(self._policy, self.session, TASK, seed=seed, policy_seed=1000 * seed + member)
                for member in range(GROUP_SIZE)
            ]
            scores = [float(bool(one.success)) for one in own]
            rewards += scores
            if 0 < sum(scores) < GROUP_SIZE:
                played += [(one, score - float(np.mean(scores)), group) for one, score in zip(own, scores, strict=True)]
        if played:
            self._step(played)
        return float(np.mean(rewards))

    def _step(self, played: list[tuple[Trajectory, float, int]]) -> None:
        shots: dict[str, NDArray[np.uint8]] = {}
        samples = []
        for number, (one, advantage, group) in enumerate(played):
            for step in one.steps:
                assert step.pixels is not None
                name = f"{group}/{number}"
                shots[name] = np.asarray(step.pixels.prompt[0])
                samples.append(
                    Sample(
                        step.prompt_ids, (name,), step.response_ids, step.logprobs, advantage, group, trajectory=number
                    )
                )
        collate = Collator(self._tokens, VisionSpec.from_dir(self.start), ImageCache(shots.__getitem__))
        micro = collate(samples)
        logprobs, entropies = response_logprobs(self._model, micro, self._tokens.suppressed_ids)
        scored = Scored(
            logprobs, entropies, logprobs.detach(), micro.mask, micro.advantages, micro.behaviour_logprobs,
            micro.behaviour_known,
        )  # fmt: skip
        loss = objective(scored, ObjectiveConfig(beta=0.0), Normalizer(micro.num_tokens, len(samples))).loss
        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()

    async def publish(self, directory: Path, version: int) -> None:
        """Let the engine serve what was learnt."""
        await self.engine.update_weights(str(checkpoint.write_model(self._model, directory, self.start)), version)


async def learn(
    start: Path, out: Path, updates: int, episodes: int, max_tokens: int, learning_rate: float
) -> dict[str, object]:
    """Before, updates, after."""
    engine = TransformersEngine(start, threads=1)
    async with Session() as session:
        learner = Learner(start, engine, session, max_tokens, learning_rate)
        began, found = time.process_time(), {"before": await learner.success(episodes)}
        found["before_greedy"] = await learner.success(episodes, greedy=True)
        rewards = []
        for number in range(updates):
            rewards.append(round(await learner.update(number), 3))
            await learner.publish(out / f"v{number + 1:06d}", number + 1)
            print(f"{(number + 1) * GROUPS * GROUP_SIZE} rollouts: {rewards[-1]}", flush=True)
        found |= {
            "after": await learner.success(episodes),
            "after_greedy": await learner.success(episodes, greedy=True),
        }
    await engine.close()
    spent = round(time.process_time() - began, 1)
    return {**found, "rewards": rewards, "rollouts": updates * GROUPS * GROUP_SIZE, "processor_s": spent}


def main(
    start: Path,
    out: Path,
    updates: Annotated[int, typer.Option(help="Steps of GRPO, 32 rollouts each.")] = 20,
    episodes: Annotated[int, typer.Option(help="Held-out ones, before and after.")] = 200,
    max_tokens: Annotated[int, typer.Option(help="Of an answer in text.")] = 8,
    learning_rate: Annotated[float, typer.Option(help="Of AdamW.")] = 1e-3,
) -> None:
    """Learn, and print what came of it."""
    torch.set_num_threads(1)
    print(json.dumps(asyncio.run(learn(start, out, updates, episodes, max_tokens, learning_rate))))


if __name__ == "__main__":
    typer.run(main)
